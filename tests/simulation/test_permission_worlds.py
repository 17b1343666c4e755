"""Three brokers with logins and ACLs that change, while clients write and brokers fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oncelog.broker.requests.authorizer import StandardAuthorizer
from oncelog.cluster.acls import Decision
from oncelog.net.connection import ClientConnection
from oncelog.net.security import Security
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.kinds import AclOperation, AclResource
from oncelog.protocol.messages.create_acls import CreateAclsRequest
from oncelog.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.schema import Message
from oncelog.sim.world import PORT, World
from support.cluster_plans import BROKERS, expand
from support.permission_world import broker_settings, creation, login, revocation, run_plan
from support.raw_client import connect_to
from support.replica_invariants import InvariantError

SEEDS, SEEDS_A_TEST = 10, 5
TOPIC = "t"
READ = AclOperation.READ


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_answers_agree_with_the_newest_acls_and_nothing_is_lost(first: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_A_TEST):
        try:
            total += run_plan(expand(seed))[0]
        except BaseException as error:
            error.add_note(f"seed {seed} fails; run it again with: scripts/worlds --secured {seed} 1")
            raise
    outcomes = [f"{what} {word}" for what in ("READ", "WRITE", "login") for word in ("allowed", "denied")]
    assert min(total[each] for each in (*outcomes, "numbers", "commits", "committed", "aborted")) > 0


def test_same_seed_is_the_same_world() -> None:
    assert run_plan(expand(3)) == run_plan(expand(3))


def test_decisions_that_are_never_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    allows = StandardAuthorizer.allows
    remembered: dict[tuple[object, ...], bool] = {}

    def stale(self: StandardAuthorizer, session: Any, operation: int, resource: int, name: str) -> bool:
        question = id(self), session.principal, operation, resource, name
        if question not in remembered:
            remembered[question] = allows(self, session, operation, resource, name)
        return remembered[question]

    monkeypatch.setattr(StandardAuthorizer, "allows", stale)
    with pytest.raises(InvariantError, match=r"invariant 15: broker . has (allowed|denied)"):
        run_plan(expand(0))


def test_write_of_a_denied_client_that_is_appended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def allow(self: StandardAuthorizer, session: Any, operation: int, resource: int, name: str) -> bool:
        return True

    monkeypatch.setattr(StandardAuthorizer, "allows", allow)
    with pytest.raises(InvariantError, match=r"invariant 15: broker . has allowed"):
        run_plan(expand(0))


# -- named worlds ----------------------------------------------------------------------------------------------------


class Cluster:
    """Three brokers, and a user who may read one topic."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def start(self) -> None:
        for number in BROKERS:
            await self.world.start_broker(number, **broker_settings(number))
        await asyncio.sleep(1)
        topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=3)
        answer = await self.ask(1, CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        assert not answer.topics[0].error_code
        await self.grant(1)
        await asyncio.sleep(1)
        assert [await self.code(number) for number in BROKERS] == [ErrorCode.NONE] * 3

    async def connect(self, number: int, security: Security) -> ClientConnection:
        return await connect_to(f"broker-{number}", PORT, security)

    async def ask(self, number: int, request: Message) -> Any:
        connection = await self.connect(number, login("admin"))
        try:
            return await connection.call(request)
        finally:
            connection.close()

    async def grant(self, number: int) -> None:
        acl = creation("User:mallory", READ, AclResource.TOPIC, TOPIC)
        answer = await self.ask(number, CreateAclsRequest(creations=[acl]))
        assert not answer.results[0].error_code

    async def revoke(self, number: int) -> None:
        answer = await self.ask(number, revocation(READ))
        assert len(answer.filter_results[0].matching_acls) == 1

    async def code(self, number: int, connection: ClientConnection | None = None) -> int:
        """Ask a broker for the topic as the user, and return the error."""
        own = connection or await self.connect(number, login("mallory"))
        answer = await own.call(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]))
        if connection is None:
            own.close()
        return int(answer.topics[0].error_code)


def run(scenario: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await scenario(cluster)

    World(1, store_latency_s=(0.0005, 0.02)).run(main, limit_s=600)


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_revoked_permission_survives_the_crash_of_the_broker_that_has_answered() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.revoke(1)
        cluster.world.brokers[1].crash()
        await asyncio.sleep(1)
        assert [await cluster.code(number) for number in (2, 3)] == [DENIED] * 2
        await cluster.world.brokers[1].start()
        assert await cluster.code(1) == DENIED

    run(scenario)


def test_open_connections_are_denied_after_the_answer() -> None:
    async def scenario(cluster: Cluster) -> None:
        open_ones = {number: await cluster.connect(number, login("mallory")) for number in BROKERS}
        assert [await cluster.code(number, open_ones[number]) for number in BROKERS] == [ErrorCode.NONE] * 3
        await cluster.revoke(2)
        assert await cluster.code(2, open_ones[2]) == DENIED
        await asyncio.sleep(1)
        assert [await cluster.code(number, open_ones[number]) for number in BROKERS] == [DENIED] * 3

    run(scenario)


def test_paused_broker_uses_the_new_acls_when_it_has_read_them() -> None:
    async def scenario(cluster: Cluster) -> None:
        paused = cluster.world.brokers[3]
        paused.pause()
        await cluster.revoke(1)
        await asyncio.sleep(15)  # its session ends
        paused.resume()
        await asyncio.sleep(1)
        assert await cluster.code(3) == DENIED
        assert paused.broker is not None
        acls = paused.broker.metadata.image.acls
        assert acls.decide("User:mallory", "client", READ, AclResource.TOPIC, TOPIC) is not Decision.ALLOWED

    run(scenario)


def test_killed_broker_does_not_serve_with_old_acls_after_its_restart() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.world.brokers[2].kill()
        await cluster.revoke(1)
        await cluster.world.brokers[2].start()
        assert await cluster.code(2) == DENIED  # its first answer
        await cluster.grant(2)
        assert await cluster.code(2) == ErrorCode.NONE

    run(scenario)
