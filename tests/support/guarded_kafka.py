"""Apache Kafka with an authorizer: clients of `bootstrap` may do only what was granted."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from support.apache_kafka import ApacheKafka, held_ports, port_of

SUPER_USER = {"sasl.mechanism": "PLAIN", "sasl.username": "root", "sasl.password": "secret"}
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="root" password="secret" '
    'user_root="secret";'
)


class GuardedKafka(ApacheKafka):
    """The broker. Its own connections and the administrator's use other listeners, with a password."""

    name = "guarded-kafka"
    principal = "User:ANONYMOUS"

    def listeners(self, port: int, controller: int) -> dict[str, str]:
        self._held += held_ports(1)
        self.internal = f"127.0.0.1:{port_of(self._held[-1])}"
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},INTERNAL://{self.internal},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.internal.plain.sasl.jaas.config": JAAS,
            "listener.name.controller.plain.sasl.jaas.config": JAAS,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:root",
        }

    @cached_property
    def admin(self) -> AdminClient:
        """Return an admin client of the super user."""
        return AdminClient({"bootstrap.servers": self.internal, "security.protocol": "SASL_PLAINTEXT", **SUPER_USER})

    def grant(
        self, kind: ResourceType, name: str, operations: Iterable[AclOperation], *, prefixed: bool = False
    ) -> None:
        """Grant these operations to `principal` on one resource, or on all whose names have this prefix."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        allow = AclPermissionType.ALLOW
        wanted = [AclBinding(kind, name, pattern, self.principal, "*", operation, allow) for operation in operations]
        for future in self.admin.create_acls(wanted).values():
            future.result(30)

    def permit_sink(self, topic: str, without: str = "", *, decisions: bool = True) -> None:
        """Create the topics of a sink, and grant all permissions that docs/spark.md lists for it, except one."""
        self.admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
        if decisions:
            made = NewTopic(f"sink-{topic}-commits", 1, 1, config={"cleanup.policy": "compact"})
            self.admin.create_topics([made])[made.topic].result(30)
        for name, what in ((topic, "topic"), (f"sink-{topic}-commits", "decisions")):
            wanted = (AclOperation.READ, AclOperation.WRITE)
            self.grant(ResourceType.TOPIC, name, [each for each in wanted if f"{what} {each.name}" != without])
        if without != "ids":
            self.grant(ResourceType.TRANSACTIONAL_ID, f"sink-{topic}", (AclOperation.WRITE,), prefixed=True)
