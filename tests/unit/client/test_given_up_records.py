"""Records that a producer gives up while a request with them is unanswered: purged, or expired."""

from __future__ import annotations

import asyncio
import gc

import pytest

from oncelog import aio, errors
from oncelog.client.producer.core import ProducerCore
from support.model_cluster import FINE, LATE, LOST_ANSWER, SLOW, ModelCluster
from support.producer_core import values, with_core


@pytest.mark.parametrize(("version", "wants"), [(1, [b"given up", None]), (2, [])])
@pytest.mark.parametrize("given_up", ["purged", "expired"])
def test_abort_does_not_overtake_a_request_whose_records_are_given_up(
    version: int, wants: list[bytes | None], given_up: str
) -> None:
    """With transaction.version < 2, a leader that verifies nothing would open a transaction that no coordinator ends.

    With transaction.version 2, the marker fences the request, so the abort need not wait.
    """
    cluster = ModelCluster(1, lambda: SLOW, version=version, verifies=False)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        core.buffer.append("t", b"given up", None, 0, 0, ())
        while not core.sender.in_flight.get(1):
            await asyncio.sleep(0.001)
        if given_up == "purged":
            assert core.purge(in_queue=True, in_flight=True) == 1
        else:
            await asyncio.sleep(0.01)
        assert not core.accumulator.incomplete()
        await core.abort()
        await asyncio.sleep(1)
        assert [entry.value for entry in cluster.logs["t", 0].entries] == wants
        cluster.fault = lambda: FINE
        core.begin()
        core.buffer.append("t", b"next", None, 0, 0, ())
        await core.commit()
        assert values(cluster) == [b"next"]

    timeouts = {"delivery_timeout_ms": 12, "request_timeout_ms": 12} if given_up == "expired" else {}
    with_core(body, cluster, transactional_id="id", linger_ms=0, **timeouts)


@pytest.mark.parametrize("state", ["in flight", "waits for a retry"])
@pytest.mark.parametrize("fate", [LATE, LOST_ANSWER])
def test_abort_does_not_overtake_purged_records_whose_connection_is_lost(fate: str, state: str) -> None:
    """The abort waits until a retry is answered, as without purge. After that, a late request is a known duplicate."""
    cluster = ModelCluster(1, lambda: FINE, version=1, verifies=False)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        core.buffer.append("t", b"first", None, 0, 0, ())
        await core.flush()
        cluster.fault = lambda: fate
        future = core.buffer.append("t", b"purged", None, 0, 0, ())
        assert future is not None
        while not core.sender.in_flight.get(1):
            await asyncio.sleep(0.001)
        while state != "in flight" and core.sender.in_flight.get(1):
            await asyncio.sleep(0.001)
        assert core.purge(in_queue=True, in_flight=True) == 1
        assert core.purge(in_queue=True, in_flight=True) == 0
        assert isinstance(future.exception(0), errors.AbortableError)
        await core.flush(0)
        cluster.fault = lambda: FINE
        await core.abort()
        await asyncio.sleep(1)  # until a late request has arrived
        assert [entry.value for entry in cluster.logs["t", 0].entries] == [b"first", b"purged", None]
        core.begin()
        core.buffer.append("t", b"next", None, 0, 0, ())
        await core.commit()
        assert values(cluster) == [b"next"]
        assert core.accumulator.used == 0

    cluster.backoff_ms = (50, 1_000)
    with_core(body, cluster, transactional_id="id", linger_ms=0)


def test_records_that_are_unsent_when_the_loop_ends_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        producer = aio.Producer("localhost:1")
        await producer.start()
        producer._core.counts["t"] = 1
        for _ in range(3):
            await producer.send("t", b"x")

    asyncio.run(body())
    gc.collect()
    # The collection may also find unfinished tasks of other tests, which asyncio logs.
    (said,) = [record.getMessage() for record in caplog.records if record.name.startswith("oncelog")]
    assert said.startswith(
        "the event loop ended before 3 records were acknowledged, so they may be lost; await close()"
    )


def test_close_raises_no_error_of_purged_parts_of_a_split_batch() -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        for value in (b"a", b"b"):
            core.buffer.append("t", value, None, 0, 0, ())
        while not core.sends.splits:
            await asyncio.sleep(0.001)
        assert core.purge(in_queue=True, in_flight=True) == 2
        await core.close()

    with_core(body, ModelCluster(1, lambda: SLOW, version=2, largest=1), linger_ms=5)
