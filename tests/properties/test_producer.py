"""Test the producer against a model broker that loses requests and answers, is busy, late, or times transactions out.

Nothing acknowledged may be missing, duplicated, or out of order. A transaction is visible as a whole or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncelog import errors
from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.options import producer_options
from oncelog.client.producer.transaction_states import ManagerState
from support.model_cluster import BUSY, FAULTS, FINE, LATE, LOST_ANSWER, LOST_REQUEST, ModelCluster
from support.virtual_time import run

PARTITIONS = 2
seeds = st.integers(0, 2**32 - 1)
largests = st.sampled_from([100, 3, 1])
"""The largest number of records in a batch that the broker accepts."""


def faults(seed: int, rate: float, kinds: tuple[str, ...] = FAULTS) -> Callable[[], str]:
    chance = random.Random(seed)
    return lambda: chance.choice(kinds) if chance.random() < rate else FINE


def make_core(cluster: ModelCluster, **options: Any) -> ProducerCore:
    import asyncio

    loop = asyncio.get_running_loop()
    cluster.backoff_ms = (2, 10)
    defaults = {"batch_size": 200, "linger_ms": 1}
    full = producer_options(None, {"bootstrap_servers": "model:1", **defaults, **options})
    return ProducerCore(full, loop, clock=lambda: int(loop.time() * 1000), cluster=cluster)  # type: ignore[arg-type]


async def send_numbers(core: ProducerCore, chance: random.Random, start: int, count: int) -> list[tuple[int, int, Any]]:
    import asyncio

    await core.learn_topic("t")
    sent = []
    for number in range(start, start + count):
        partition = chance.randrange(PARTITIONS)
        future = core.buffer.append("t", b"%d" % number, None, partition, 0, ())
        assert future is not None
        sent.append((number, partition, future))
        if chance.random() < 0.2:
            await asyncio.sleep(chance.random() * 0.01)
    return sent


def numbers(cluster: ModelCluster, partition: int) -> list[int]:
    return [int(entry.value) for entry in cluster.logs["t", partition].entries if entry.value is not None]


def check_log(cluster: ModelCluster, sent: list[tuple[int, int, Any]]) -> None:
    for partition in range(PARTITIONS):
        log = numbers(cluster, partition)
        assert log == sorted(set(log)), "duplicated, or out of order"
        for number, where, future in sent:
            if where == partition and future.exception(0) is None:
                offset = future.result(0).offset
                assert number in log, "acknowledged, but not in the log"
                if offset >= 0:
                    assert log[offset] == number


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rate=st.sampled_from([0.0, 0.2, 0.5]), in_flight=st.sampled_from([1, 2, 5]), largest=largests)
def test_idempotent_producer_writes_each_record_once_in_order(
    seed: int, rate: float, in_flight: int, largest: int
) -> None:
    async def body() -> None:
        cluster = ModelCluster(PARTITIONS, faults(seed, rate), version=2, largest=largest)
        core = make_core(cluster, max_in_flight_requests_per_connection=in_flight)
        sent = await send_numbers(core, random.Random(seed), 0, 120)
        await core.flush()
        check_log(cluster, sent)
        assert all(future.exception(0) is None for _, _, future in sent)
        await core.close()

    run(body())


@settings(max_examples=300, deadline=None)
@given(seed=seeds, largest=st.sampled_from([100, 5]))
@example(seed=116, largest=100)  # duplicates records if a batch in doubt is renumbered
def test_expired_batches_leave_no_blocking_gap(seed: int, largest: int) -> None:
    async def body() -> None:
        broken = faults(seed, 0.8, (LOST_REQUEST, LOST_ANSWER, BUSY, LATE))
        cluster = ModelCluster(PARTITIONS, broken, version=2, largest=largest)
        core = make_core(cluster, delivery_timeout_ms=60, request_timeout_ms=40)
        chance = random.Random(seed)
        sent = await send_numbers(core, chance, 0, 80)
        await core.flush()
        cluster.fault = lambda: FINE
        healed = await send_numbers(core, chance, 80, 40)
        await core.flush()
        check_log(cluster, sent + healed)
        for _, _, future in sent:
            assert future.exception(0) is None or isinstance(future.exception(0), errors.TimedOutError)
        assert [future.exception(0) for _, _, future in healed] == [None] * 40
        await core.close()

    run(body())


PURGES = st.sampled_from([(True, False), (False, True), (True, True)])


@settings(max_examples=200, deadline=None)
@given(seed=seeds, rate=st.sampled_from([0.0, 0.3, 0.8]), in_flight=st.sampled_from([1, 5]), purge=PURGES)
def test_purge_leaves_no_gap_and_reports_what_may_be_in_the_log(
    seed: int, rate: float, in_flight: int, purge: tuple[bool, bool]
) -> None:
    async def body() -> None:
        cluster = ModelCluster(PARTITIONS, faults(seed, rate), version=2)
        core = make_core(cluster, max_in_flight_requests_per_connection=in_flight)
        chance = random.Random(seed)
        sent: list[tuple[int, int, Any]] = []
        for turn in range(4):
            sent += await send_numbers(core, chance, turn * 20, 20)
            open_before = sum(not future.done() for _, _, future in sent)
            dropped = core.purge(in_queue=purge[0], in_flight=purge[1])
            assert open_before - sum(not future.done() for _, _, future in sent) == dropped
            if all(purge):
                assert core.accumulator.empty
        await core.flush()
        cluster.fault = lambda: FINE
        healed = await send_numbers(core, chance, 80, 40)
        await core.flush()
        check_log(cluster, sent + healed)
        assert [future.exception(0) for _, _, future in healed] == [None] * 40
        in_log = {number for partition in range(PARTITIONS) for number in numbers(cluster, partition)}
        for number, _, future in sent:
            error = future.exception(0)
            assert error is None or isinstance(error, errors.PurgedError | errors.DeliveryTimeoutError)
            assert not (isinstance(error, errors.PurgedError) and number in in_log)
        await core.close()

    run(body())


async def try_transaction(
    core: ProducerCore, cluster: ModelCluster, chance: random.Random, start: int, sent: list[tuple[int, int, Any]]
) -> str:
    """Return the outcome of a transaction, "committed" or "aborted", and add its records to `sent`."""
    try:
        core.begin()
        sent += await send_numbers(core, chance, start, chance.randrange(12))
        if chance.random() < 0.15:
            cluster.time_out()
        if chance.random() < 0.25:
            await core.abort()
            return "aborted"
        if chance.random() < 0.1:
            core.purge(in_queue=chance.random() < 0.5, in_flight=chance.random() < 0.5)
        if chance.random() < 0.3:
            handle = await core.prepare()
            assert sum(last >= first for _, _, first, last in handle.spans) == len({where for _, where, _ in sent})
        await core.commit()
        return "committed"
    except errors.AbortableError:
        await core.abort()
        return "aborted"


@settings(max_examples=120, deadline=None)
@given(
    seed=seeds,
    rate=st.sampled_from([0.0, 0.15, 0.4]),
    version=st.sampled_from([1, 2]),
    verifies=st.booleans(),
    largest=largests,
)
@example(seed=530523, rate=0.15, version=1, verifies=False, largest=100)  # an abort overtakes a purged request
def test_transactions_are_atomic(seed: int, rate: float, version: int, verifies: bool, largest: int) -> None:
    async def body() -> None:
        chance = random.Random(seed)
        cluster = ModelCluster(PARTITIONS, faults(seed, rate), version=version, largest=largest, verifies=verifies)
        core = make_core(cluster, transactional_id="tx")
        await core.init_transactions()
        outcomes = []
        for turn in range(8):
            sent: list[tuple[int, int, Any]] = []
            outcome = await try_transaction(core, cluster, chance, turn * 100, sent)
            outcomes.append((outcome, sent))
        for partition in range(PARTITIONS):
            log = numbers(cluster, partition)
            assert log == sorted(set(log)), "duplicated, or out of order"
            visible = [int(value) for value in cluster.logs["t", partition].committed()]
            expected = [
                number for outcome, sent in outcomes for number, where, _ in sent
                if where == partition and outcome == "committed"
            ]  # fmt: skip
            assert visible == expected
        assert core.manager is not None
        assert core.manager.state is ManagerState.READY, "the producer always recovers from timeouts"
        await core.close()

    run(body())


def test_successor_fences() -> None:
    async def body() -> None:
        cluster = ModelCluster(PARTITIONS, lambda: FINE, version=2)
        old, new = (make_core(cluster, transactional_id="tx") for _ in range(2))
        await old.init_transactions()
        old.begin()
        await send_numbers(old, random.Random(0), 0, 10)
        await old.flush()
        await new.init_transactions()
        new.begin()
        await send_numbers(new, random.Random(0), 100, 10)
        await new.commit()
        for end in (old.commit, old.abort):
            with pytest.raises(errors.FencedError):
                await end()
        seen = [int(value) for index in range(PARTITIONS) for value in cluster.logs["t", index].committed()]
        assert sorted(seen) == list(range(100, 110))
        await new.close()
        await old.close()

    run(body())
