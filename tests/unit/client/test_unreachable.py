"""What a client logs and raises while no broker answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client import troubles as module
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import Partition, Topic
from oncelog.client.requests.offsets import fetch_committed
from oncelog.net.connection import ClientConnection
from oncelog.net.failures import ConnectionLostError, RequestTimeoutError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from oncelog.protocol.schema import NO_UUID, Message
from oncelog.sim.loop import SimLoop
from oncelog.spark.commit.errors import SinkError
from oncelog.spark.commit.record import NO_SOURCE
from oncelog.spark.reading.batch import BatchSource
from oncelog.spark.reading.stream import StreamSource
from oncelog.spark.writing.driver import make_plan
from oncelog.spark.writing.options import sink_options


def tries(address: str, count: int) -> None:
    async def go() -> None:
        async with ClusterClient(address) as cluster:
            for _ in range(count):
                with pytest.raises(errors.ConnectionFailedError, match=address):
                    await cluster.refresh([])

    asyncio.run(go())


@pytest.mark.parametrize(("silent", "count", "lines"), [(0.0, 1, 0), (0.0, 4, 1), (3600.0, 4, 0)])
def test_outage_is_logged_once_and_not_at_its_first_failure(
    silent: float, count: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", silent)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        tries(address, count)
    said = [record.getMessage() for record in caplog.records if record.name == "oncelog.client.connections"]
    assert len(said) == lines
    assert all(address in line and line.endswith("still retrying") for line in said)


@pytest.fixture
def dead() -> Iterator[str]:
    """Return an address where no process listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_time_without_a_broker_does_not_count_for_a_missing_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just restarted may not know a topic, or its leader, at once."""
    answers = iter([None, Topic("t", NO_UUID, False, {0: Partition(1, 0, (1,), (1,))})])

    async def refresh(cluster: ClusterClient, names: list[str], **more: bool) -> None:
        found = next(answers)
        if found is None:
            await asyncio.sleep(0.4)
        else:
            cluster.topology.topics["t"] = found

    async def go() -> Topic:
        async with ClusterClient("h:1", missing_topic_ms=300) as cluster:
            return await cluster.topic("t")

    monkeypatch.setattr(ClusterClient, "refresh", refresh)
    assert asyncio.run(go()).name == "t"


def test_errors_of_first_calls_name_the_address_and_the_cause(dead: str) -> None:
    options = {"max_block_ms": 300, "retry_backoff_max_ms": 50}
    said = f"{dead}.*refused"
    with pytest.raises(errors.TimedOutError, match=said):
        Producer(dead, transactional_id="t", **options)
    with Producer(dead, **options) as producer, pytest.raises(errors.RetriableError, match=said) as failed:
        producer.send("t", b"v")
    assert str(failed.value).count("then retry") == 1  # the advice of the cause is not repeated
    with Admin(dead, default_api_timeout_ms=300) as admin, pytest.raises(errors.RetriableError, match=said):
        admin.list_topics()
    with Consumer(dead) as consumer, pytest.raises(errors.RetriableError, match=said):
        consumer.end_offsets([("t", 0)], timeout=0.3)


@pytest.mark.parametrize(
    "asked",
    [
        lambda cluster: cluster.topic("t", timeout_ms=1_000),
        lambda cluster: cluster.reach(1_000),
        lambda cluster: cluster.call_any(ApiVersionsRequest(), timeout_ms=1_000),
        lambda cluster: fetch_committed(cluster, "g", timeout_ms=1_000),
    ],
    ids=["topic", "reach", "any", "coordinator"],
)
def test_unresponsive_address_takes_no_longer_than_the_timeout(
    asked: Callable[[ClusterClient], Awaitable[object]],
) -> None:
    async def swallowed(host: str, port: int) -> ClientConnection:
        await asyncio.sleep(10)
        raise ConnectionLostError("nowhere:1: no connection in 10 s")

    async def body() -> None:
        async with ClusterClient("nowhere:1") as cluster:
            cluster._connections._connect_once = swallowed  # type: ignore[assignment]
            with pytest.raises(
                errors.ConnectionFailedError, match="no connection within 1000 ms; known brokers: nowhere:1"
            ):
                await asked(cluster)

    with closing(SimLoop()) as loop:
        loop.run_until_complete(body())
        assert loop.time() <= 1.001


@pytest.mark.parametrize(
    "first_call",
    [
        lambda given: make_plan(
            sink_options({**given, "transactionalIdPrefix": "p", "topic": "t"}, streaming=True), NO_SOURCE
        ),
        lambda given: StreamSource({**given, "subscribe": "t"}).initialOffset(),
        lambda given: BatchSource({**given, "subscribe": "t"}).partitions(),
    ],
    ids=["sink", "source", "batch source"],
)
def test_error_in_spark_names_the_option(dead: str, first_call: Callable[[dict[str, str]], object]) -> None:
    given = {"kafka.bootstrap.servers": dead, "bootstrapTimeoutMs": "300"}
    with pytest.raises(SinkError, match=rf"option kafka.bootstrap.servers={dead}: .*refused.*bootstrapTimeoutMs"):
        first_call(given)


def test_error_of_an_earlier_response_is_raised_if_the_last_request_times_out() -> None:
    """A broker whose metadata is locked names the process that holds the lock. The last attempt has less time."""
    said = "process 7 holds the write lock. If it hangs, resume it with SIGCONT, or kill it."

    class Busy:
        """A broker that needs 10 s for each response."""

        address = "h:1"

        async def call(self, request: Message, version: int | None, *, timeout_ms: float) -> CreateTopicsResponse:
            await asyncio.sleep(min(10, timeout_ms / 1000))
            if timeout_ms < 10_000:
                raise RequestTimeoutError("h:1 did not answer CreateTopicsRequest in time")
            code = ErrorCode.REQUEST_TIMED_OUT
            return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=code, error_message=said)])

    async def body() -> None:
        async with ClusterClient("h:1") as cluster:
            cluster._any_connection = connected  # type: ignore[assignment]
            with pytest.raises(errors.TimedOutError) as raised:
                await cluster.call_any(CreateTopicsRequest(), timeout_ms=25_000)
            assert raised.value.message == (
                f"CreateTopicsRequest: {said[:-1]}; after that, h:1 did not answer CreateTopicsRequest in time"
            )
            assert raised.value.code is ErrorCode.NETWORK_EXCEPTION  # the outcome is unknown

    async def connected() -> Busy:
        return Busy()

    with closing(SimLoop()) as loop:
        loop.run_until_complete(body())
