"""Available producer ids: blocks of them are reserved in the metadata, which may be unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from oncelog.broker.coordinators.producer_ids import BlockNode
from oncelog.cluster.store import MetadataStore, Operation, OutcomeUnknownError, UnavailableError
from oncelog.cluster.store_memory import MemoryStore
from oncelog.cluster.store_sqlite import SqliteStore
from oncelog.coordinator.producer_ids import BLOCK_PATH, ProducerIdBlock, acquire_block
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest
from oncelog.sim.world import World
from support.transaction_fixtures import E, Setup, with_broker


def block(world: World) -> tuple[int, int, int]:
    fields = json.loads(world.store.get(BLOCK_PATH).data)
    return fields["broker"], int(fields["block_start"]), int(fields["block_end"])


def test_block_is_reserved_at_start_and_when_the_last_one_is_used_up() -> None:
    async def scenario(setup: Setup) -> None:
        assert block(setup.world) == (1, 0, 999)
        request = InitProducerIdRequest(transactional_id=None)
        seen = {setup.writer.producer_id}
        for _ in range(1500):
            response = await setup.call(request)
            assert (response.error_code, response.producer_epoch) == (E.NONE, 0)
            seen.add(response.producer_id)
            if len(seen) == 999:
                assert block(setup.world) == (1, 0, 999)
        assert seen == set(range(1501))
        assert block(setup.world) == (1, 1000, 1999)
        setup.sim.kill()
        await setup.sim.start()
        assert (await setup.call(request)).producer_id == 2000

    with_broker(scenario)


@pytest.mark.parametrize(
    ("failure", "answers"),
    [
        (UnavailableError("/"), {E.NONE, E.COORDINATOR_LOAD_IN_PROGRESS}),
        (OutcomeUnknownError("/"), {E.NONE}),  # looked up at once: it had not been written
    ],
)
def test_failed_store_request_is_retried(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, answers: set[ErrorCode]
) -> None:
    async def scenario(setup: Setup) -> None:
        ids = setup.broker.producer_ids.ids
        while ids.remaining > 1:
            ids.take()
        write = setup.world.store.multi
        failures = [failure] * 3

        def fail(operations: Sequence[Operation], *, session: int | None = None) -> None:
            if failures and operations[0].path == BLOCK_PATH:
                raise failures.pop()
            write(operations, session=session)

        monkeypatch.setattr(setup.world.store, "multi", fail)
        codes = []
        producer_id = -1
        while producer_id < 1000:
            response = await setup.call(InitProducerIdRequest(transactional_id=None))
            producer_id = response.producer_id
            codes.append(response.error_code)
            await asyncio.sleep(0.1)
        assert set(codes) == answers
        assert (producer_id, failures) == (1000, [])

    with_broker(scenario)


def test_invalid_session_request_is_rejected_before_a_block_is_reserved() -> None:
    async def scenario(setup: Setup) -> None:
        for fields in ({"producer_id": 5}, {"producer_epoch": 5}):
            response = await setup.call(InitProducerIdRequest(transactional_id=None, **fields))
            assert response.error_code == E.INVALID_REQUEST

    with_broker(scenario)


class Overtaken(BlockNode):
    """Another broker takes a block between the first read of this one and its write."""

    def __init__(self, store: MetadataStore, rival: Callable[[], object]) -> None:
        super().__init__(store)
        self._rivals = [rival]

    def read(self) -> tuple[bytes, int]:
        found = super().read()
        if self._rivals:
            self._rivals.pop()()
        return found


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_broker_that_is_overtaken_gets_the_next_block(tmp_path: Path, kind: str) -> None:
    """The version of the node decides: without its check, both brokers would have the same ids."""
    with contextlib.ExitStack() as stack:
        if kind == "memory":
            first: MetadataStore = MemoryStore(lambda: 0)
            second = first
        else:
            path = str(tmp_path / "metadata.sqlite")
            first, second = (stack.enter_context(contextlib.closing(SqliteStore(path))) for _ in range(2))
        blocks: list[ProducerIdBlock] = []
        node = Overtaken(first, lambda: blocks.append(acquire_block(BlockNode(second), 2)))
        blocks.append(acquire_block(node, 1))
    assert blocks == [(2, 0, 999), (1, 1000, 1999)]
