"""Three brokers with logins and ACLs that change while clients write and brokers fail.

All clients of `ClusterWorld` log in as a user whom ACLs allow everything. Two other users are probed: the ACLs of one
change, and so does the SCRAM password of the other. Invariant 15: each answer agrees with the newest image of the
broker that gives it. After an administrator has got an answer, all brokers that are well get this image.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from oncelog.broker.config.listener_security import ListenerSecurity
from oncelog.broker.config.listeners import ListenerConfig
from oncelog.cluster.acls import Decision
from oncelog.net.connection import ClientConnection
from oncelog.net.credentials import Secret
from oncelog.net.failures import ConnectionLostError
from oncelog.net.sasl import Scram
from oncelog.net.security import PasswordLogin, Security
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType
from oncelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from oncelog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from oncelog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from oncelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from oncelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from oncelog.protocol.records import Record, build_batch
from oncelog.protocol.schema import Message
from oncelog.sim.plan import Plan
from oncelog.sim.world import PORT, SimBroker, World
from support import cluster_world
from support.cluster_clients import TOPIC, Client
from support.cluster_plans import BROKERS, PARTITIONS
from support.cluster_values import committed_values
from support.cluster_world import LIMIT_S, ClusterWorld
from support.raw_client import RETRY_S, connect_to
from support.replica_invariants import InvariantError

USERS = {name: Secret(f"hunter2-{name}") for name in ("broker", "admin", "alice", "mallory")}
PROBED, SCRAM_USER = "User:mallory", "trent"
MECHANISM, SCRAM_PASSWORD, ITERATIONS = "SCRAM-SHA-256", "hunter2-trent", 4096
REAUTH_MS = 1500
CHANGE_S, PROBE_S = (0.2, 1.0), (0.02, 0.2)
"""The time between two changes, and between two probes, at least and at most."""
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OPERATIONS = AclOperation.READ, AclOperation.WRITE


def login(user: str) -> Security:
    """Return how a client connects as this user."""
    return Security("SASL_PLAINTEXT", None, PasswordLogin("PLAIN", user, USERS[user]))


def broker_settings(number: int) -> dict[str, Any]:
    """Return the settings of a broker."""
    peer_login = PasswordLogin("PLAIN", "broker", USERS["broker"])
    return {
        "client_listeners": (ListenerConfig(host=f"broker-{number}", port=PORT, protocol="SASL_PLAINTEXT"),),
        "security": {
            "PLAINTEXT": ListenerSecurity(
                mechanisms=("PLAIN", MECHANISM),
                users=USERS,
                peer_login=peer_login,
                identifies=True,
                max_reauth_ms=REAUTH_MS,
            )
        },
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:broker;User:admin",
    }


def creation(principal: str, operation: AclOperation, resource: AclResource, name: str) -> AclCreation:
    """Return an ACL that allows a principal an operation."""
    return AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=AclPermission.ALLOW,
    )


def revocation(operation: AclOperation) -> DeleteAclsRequest:
    """Return the request that deletes the ACL of the probed user."""
    acl = creation(PROBED, operation, AclResource.TOPIC, TOPIC)
    found = DeleteAclsFilter(
        resource_type_filter=acl.resource_type,
        resource_name_filter=acl.resource_name,
        pattern_type_filter=acl.resource_pattern_type,
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )
    return DeleteAclsRequest(filters=[found])


class Changes:
    """The administrator. It changes what the probed users may do, and knows when each change is complete."""

    def __init__(self, world: World, client: Client) -> None:
        self.version = 0
        """Odd while a change is in progress."""
        self._world = world
        self._client = client
        self._rng = world.stream("permissions")

    def state(self, number: int, what: AclOperation | None) -> bool | None:
        """Return what a broker's newest image allows: an operation, or with None the login. None: it has no image."""
        machine = self._world.brokers[number]
        if not machine.alive or machine.broker is None:
            return None
        image = machine.broker.metadata.image
        if what is None:
            return MECHANISM in image.user_configs.get(SCRAM_USER, {})
        return image.acls.decide(PROBED, "client", what, AclResource.TOPIC, TOPIC) is Decision.ALLOWED

    async def change(self, request: Message, wanted: bool, what: AclOperation | None) -> None:
        """Send a request until a broker answers, and wait until all brokers that are well have the new image."""
        self.version += 1
        while True:
            number = self._rng.choice(BROKERS)
            try:
                machine = self._world.brokers[number]
                connection = await self._client.connection(number)
                process = machine.process
                answer = await connection.call(request)
            except ConnectionLostError:
                await asyncio.sleep(RETRY_S)
                continue
            codes = {ErrorCode(each.error_code) for each in _results(answer)}
            if codes <= {ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND}:  # a retry finds no credential to delete
                break
            if not codes <= {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}:
                raise InvariantError(15, f"the administrator got {codes}")
        if machine.process is process and self.state(number, what) not in (wanted, None):
            raise InvariantError(15, f"broker {number} has answered before it used the change of {what}")
        deadline = self._world.loop.now + LIMIT_S
        while not all(self._has(machine, wanted, what) for machine in self._world.brokers.values()):
            if self._world.loop.now > deadline:
                raise InvariantError(15, f"not all brokers use the change of {what}")
            await asyncio.sleep(0.01)
        self.version += 1

    def _has(self, machine: SimBroker, wanted: bool, what: AclOperation | None) -> bool:
        return not machine.is_well or self.state(machine.node_id, what) in (wanted, None)

    def request(self, wanted: bool, what: AclOperation | None) -> Message:
        """Return the request that grants or takes away an operation or the login."""
        if what is not None:
            acl = creation(PROBED, what, AclResource.TOPIC, TOPIC)
            return CreateAclsRequest(creations=[acl]) if wanted else revocation(what)
        if not wanted:
            gone = ScramCredentialDeletion(name=SCRAM_USER, mechanism=1)
            return AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[])
        salt = self._rng.randbytes(16)
        salted = hashlib.pbkdf2_hmac("sha256", SCRAM_PASSWORD.encode(), salt, ITERATIONS)
        made = ScramCredentialUpsertion(
            name=SCRAM_USER, mechanism=1, iterations=ITERATIONS, salt=salt, salted_password=salted
        )
        return AlterUserScramCredentialsRequest(deletions=[], upsertions=[made])


def _results(answer: Any) -> list[Any]:
    return list(answer.filter_results if hasattr(answer, "filter_results") else answer.results)


class PermissionWorld(ClusterWorld):
    """One run. `outcomes` also has the number of probes by their outcome."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.routes.security = login("alice")
        self._admin = Client(self.routes, "admin")
        self._admin.security = login("admin")
        self._changes = Changes(world, self._admin)
        self._denied: set[bytes] = set()
        """The values whose writes were denied."""

    async def _start(self) -> list[SimBroker]:
        machines = []
        for number in BROKERS:
            machine = self.world.add_broker(number, **self.settings.broker, **broker_settings(number))
            machine.disk.map_bytes = 1
            await machine.start()
            machines.append(machine)
        await asyncio.sleep(1)
        types = AclResource.TOPIC, AclResource.GROUP, AclResource.TRANSACTIONAL_ID
        acls = [creation("User:alice", AclOperation.ALL, each, "*") for each in types]
        acls.append(creation("User:alice", AclOperation.ALL, AclResource.CLUSTER, "kafka-cluster"))
        await self._admin.call(CreateAclsRequest(creations=acls), lambda r: max(each.error_code for each in r.results))
        await asyncio.sleep(1)
        return machines

    def _more_clients(self) -> list[Coroutine[Any, Any, None]]:
        return [self._change(), self._probe_topic(), self._probe_login()]

    async def _change(self) -> None:
        rng = self.world.stream("changes")
        allowed: dict[AclOperation | None, bool] = dict.fromkeys((*OPERATIONS, None), False)
        while not self.over:
            what = rng.choice((*OPERATIONS, None))
            allowed[what] = not allowed[what]
            await self._changes.change(self._changes.request(allowed[what], what), allowed[what], what)
            self.outcomes["permission changes"] += 1
            await asyncio.sleep(rng.uniform(*CHANGE_S))

    # -- probes -------------------------------------------------------------------------------------------------------

    async def _probe_topic(self) -> None:
        rng = self.world.stream("probes")
        client = Client(self.routes, "")
        client.security = login("mallory")
        number = 0
        while not self.over:
            await asyncio.sleep(rng.uniform(*PROBE_S))
            partition, what = rng.randrange(PARTITIONS), rng.choice(OPERATIONS)
            broker = self.routes.leader(TOPIC, partition)
            if broker < 0:
                continue
            number += 1
            try:
                connection = await client.connection(broker)
                before = self._changes.version, self._changes.state(broker, what)
                if what is AclOperation.WRITE:
                    code = await self._write(connection, partition, b"m-%d" % number)
                else:
                    code = await self._read(connection, partition, rng)
            except ConnectionLostError:
                continue
            self._judge(broker, what, before, code is not DENIED)

    def _judge(self, broker: int, what: AclOperation | None, before: tuple[int, bool | None], answered: bool) -> None:
        """Compare an answer with the broker's image, unless a change was in progress."""
        after = self._changes.version, self._changes.state(broker, what)
        name = "login" if what is None else what.name
        self.outcomes[f"{name} {'allowed' if answered else 'denied'}"] += 1
        if before != after or after[0] % 2 or after[1] is None:
            return
        if answered is not after[1]:
            word = "allowed" if answered else "denied"
            raise InvariantError(15, f"broker {broker} has {word} {name}, although its image says the opposite")

    async def _write(self, connection: ClientConnection, partition: int, value: bytes) -> ErrorCode:
        batch = bytes(build_batch([Record(0, self.world.now_ms(), None, value)]))
        data = [PartitionProduceData(index=partition, records=batch)]
        topics = [TopicProduceData(topic_id=self.topics[TOPIC], partition_data=data)]
        answer = await connection.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
        found = answer.responses[0].partition_responses[0]
        if found.error_code == DENIED:
            self._denied.add(value)
        elif not found.error_code:
            self.acknowledged[partition, found.base_offset] = value
            self._check_acknowledged((TOPIC, partition), found.base_offset, value)
        return ErrorCode(found.error_code)

    async def _read(self, connection: ClientConnection, partition: int, rng: random.Random) -> ErrorCode:
        wanted = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)
        topics = [FetchTopic(topic_id=self.topics[TOPIC], partitions=[wanted])]
        wait_ms = rng.choice((0, 100))
        answer = await connection.call(
            FetchRequest(max_wait_ms=wait_ms, min_bytes=rng.choice((1, 10_000)), topics=topics)
        )
        found = answer.responses[0].partitions[0]
        if found.error_code == DENIED and found.records:
            raise InvariantError(15, "a denied consumer has got records")
        return ErrorCode(found.error_code)

    async def _probe_login(self) -> None:
        rng = self.world.stream("logins")
        while not self.over:
            await asyncio.sleep(rng.uniform(*PROBE_S))
            broker = self.routes.any()
            try:
                connection = await connect_to(f"broker-{broker}", PORT)
                before = self._changes.version, self._changes.state(broker, None)
                answered = await _log_in(connection, rng)
                connection.close()
            except ConnectionLostError:
                continue
            self._judge(broker, None, before, answered)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _check_values(self) -> None:
        await super()._check_values()
        for partition in range(PARTITIONS):
            everything, _ = committed_values(self.disks, self.living[0], (TOPIC, partition), self.markers)
            written = self._denied.intersection(everything.values())
            if written:
                raise InvariantError(15, f"denied writes are in partition {partition}: {written}")
        refused = [name for name in self.outcomes if name.endswith("AUTHORIZATION_FAILED")]
        if refused:
            raise InvariantError(15, f"allowed clients were denied: {refused}")


async def _log_in(connection: ClientConnection, rng: random.Random) -> bool:
    """Log in with SCRAM, and return whether the broker accepts the login. Raises ConnectionLostError."""
    exchange = Scram(MECHANISM, SCRAM_USER, SCRAM_PASSWORD, f"{rng.getrandbits(128):032x}")
    await connection.call(SaslHandshakeRequest(mechanism=MECHANISM), 1)
    token: bytes | None = exchange.first()
    while token is not None:
        answer = await connection.call(SaslAuthenticateRequest(auth_bytes=token), 2)
        if answer.error_code:
            return False
        token = exchange.answer(bytes(answer.auth_bytes))
    return True


def run_plan(plan: Plan) -> tuple[Counter[str], str]:
    """Run one world. Return its outcomes by kind, and its digest."""
    return cluster_world.run_plan(plan, PermissionWorld)
