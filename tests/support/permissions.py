"""Servers with ACLs, for tests of permissions: a client without any, and an administrator who grants them.

Apache Kafka's administrator logs in, and its principal is a super user. On oncelog, both are anonymous: the ACLs of
the administrator name another address of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.describe_acls import DescribeAclsRequest
from oncelog.protocol.schema import Message
from support.guarded_kafka import SUPER_USER, GuardedKafka
from support.servers import OncelogCluster
from support.wire import Wire, until

PRINCIPAL = "User:ANONYMOUS"
CLUSTER_NAME = "kafka-cluster"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
}
ADMINISTRATOR_HOST = "127.0.0.2"


class Grant(NamedTuple):
    """One ACL for the client."""

    operation: AclOperation
    resource: AclResource
    name: str = CLUSTER_NAME
    permission: AclPermission = AclPermission.ALLOW
    pattern: PatternType = PatternType.LITERAL
    principal: str = PRINCIPAL
    host: str = "127.0.0.1"

    def creation(self) -> AclCreation:
        return AclCreation(
            resource_type=self.resource,
            resource_name=self.name,
            resource_pattern_type=self.pattern,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=self.permission,
        )

    def filter(self) -> DeleteAclsFilter:
        return DeleteAclsFilter(
            resource_type_filter=self.resource,
            resource_name_filter=self.name,
            pattern_type_filter=self.pattern,
            principal_filter=self.principal,
            host_filter=self.host,
            operation=self.operation,
            permission_type=self.permission,
        )


class GuardedServer(Protocol):
    """A server with ACLs."""

    name: str
    bootstrap: str

    def administrator(self) -> Wire:
        """Connect a client that may do everything."""

    def client(self) -> Wire:
        """Connect a client that may do only what was granted to `PRINCIPAL` at 127.0.0.1."""

    def stop(self) -> int:
        """Stop cleanly, and return the exit status."""


class GuardedOncelog(OncelogCluster):
    """Our broker. Before the first ACL of a resource, everyone may use it, so the administrator can create it."""

    name = "oncelog"

    def __init__(self, directory: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        guarded = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
        super().__init__(directory, settings={**settings, **guarded})
        kinds = (AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID, AclResource.DELEGATION_TOKEN)
        own = [Grant(AclOperation.ALL, kind, "*", host=ADMINISTRATOR_HOST) for kind in kinds]
        own.append(Grant(AclOperation.ALL, AclResource.CLUSTER, host=ADMINISTRATOR_HOST))
        with self.administrator() as administrator:
            grant(administrator, own)

    def administrator(self) -> Wire:
        return Wire(self.bootstrap, source=ADMINISTRATOR_HOST)

    def client(self) -> Wire:
        return Wire(self.bootstrap)


class GuardedApacheKafka(GuardedKafka):
    """Apache Kafka."""

    name = "apache-kafka"

    def __init__(self, directory: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        super().__init__(directory, settings=settings)

    def administrator(self) -> Wire:
        return Wire(self.internal, login=(SUPER_USER["sasl.username"], SUPER_USER["sasl.password"]))

    def client(self) -> Wire:
        return Wire(self.bootstrap)


GUARDED: dict[str, Callable[[Path, Mapping[str, str]], GuardedServer]] = {
    "oncelog": GuardedOncelog,
    "apache-kafka": GuardedApacheKafka,
}


def grant(administrator: Wire, grants: Iterable[Grant]) -> None:
    """Create ACLs, and wait until the broker uses them."""
    created = list(grants)
    answer = administrator.call(CreateAclsRequest(creations=[each.creation() for each in created]))
    assert not any(each.error_code for each in answer.results), answer
    for each in created:
        until(lambda each=each: exists(administrator, each), bool, f"{each} exists")  # type: ignore[misc]


def revoke(administrator: Wire, grants: Iterable[Grant]) -> None:
    """Delete ACLs, which must exist, and wait until the broker has forgotten them."""
    deleted = list(grants)
    answer = administrator.call(DeleteAclsRequest(filters=[each.filter() for each in deleted]))
    assert all(len(each.matching_acls) == 1 for each in answer.filter_results), answer
    for each in deleted:
        until(
            lambda each=each: exists(administrator, each),  # type: ignore[misc]
            lambda found: not found,
            f"{each} is deleted",
        )


def exists(administrator: Wire, acl: Grant) -> bool:
    """Return whether the broker uses the ACL. Apache Kafka's brokers follow its controller."""
    wanted = acl.filter()
    fields = {name: getattr(wanted, name) for name in wanted.FIELDS}
    return bool(administrator.call(DescribeAclsRequest(**fields)).resources)


def built(cls: type[Message], fields: Mapping[str, Any]) -> Message:
    """Create a message and the messages in its fields."""
    made: dict[str, Any] = {}
    for name, value in fields.items():
        element = getattr(cls.FIELDS[name], "element", None)
        if isinstance(value, dict):
            made[name] = built(element, value)  # type: ignore[arg-type]
            continue
        nested = isinstance(value, list) and value and isinstance(value[0], dict)
        made[name] = [built(element, each) for each in value] if nested else value  # type: ignore[arg-type]
    return cls(**made)


_LABELS = ("name", "topic", "topic_id", "group_id", "transactional_id", "resource_name", "key")
_LISTED = ("group_id", "transactional_id")
_CODES = ("error_code", "partition_error_code", "topic_config_error_code")


def outcome(response: Message, names: Mapping[UUID, str]) -> str:
    """Return the error of each named part of a response, such as `open=NONE shut=TOPIC_AUTHORIZATION_FAILED`.

    `-` is the response itself. `names` has the topics' names by their ids.
    """
    found: dict[str, set[str]] = {}

    def visit(part: Any, label: str) -> None:
        for field in _LABELS:
            value = getattr(part, field, None)
            if isinstance(value, UUID):
                value = names.get(value)
            if value:
                label = value
                if field in _LISTED and "error_code" not in part.FIELDS:
                    found.setdefault(label, set()).add("LISTED")
                break
        if getattr(part, "log_dir", ""):
            label = "directory"
        for field in _CODES:
            code = getattr(part, field, None)
            if code is not None:
                name = ErrorCode(code).name.replace("AUTHORIZATION_FAILED", "AUTH")
                found.setdefault(f"{label}.configs" if field.startswith("topic_config") else label, set()).add(name)
        for field in part.FIELDS:
            value = getattr(part, field)
            if isinstance(value, (list, tuple)):
                for each in value:
                    if isinstance(each, Message):
                        visit(each, label)

    visit(response, "-")
    lines = {label: codes - {"NONE"} or codes for label, codes in found.items()}
    return " ".join(f"{label}={'+'.join(sorted(codes))}" for label, codes in sorted(lines.items()))
