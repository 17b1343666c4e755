import asyncio
import logging
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.handlers.produce import bind
from oncelog.broker.requests.context import RequestContext
from oncelog.net.server import BadFrameError
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch
from support.broker_fixtures import live

CONTEXT = RequestContext(ApiKey.PRODUCE, 9, 1, "test", Session())


def test_error_with_acks_0_closes_the_connection_and_logs_no_fault(tmp_path: Path) -> None:
    def request(partition: int) -> ProduceRequest:
        data = PartitionProduceData(index=partition, records=bytes(build_batch([Record(0, 1_000, b"k", b"v")])))
        return ProduceRequest(acks=0, topic_data=[TopicProduceData(name="t", partition_data=[data])])

    async def life(broker: Broker) -> None:
        await broker.topics.create("t", partitions=1)
        assert bind(broker.services)(request(0), CONTEXT) is None
        assert broker.partitions.require("t", 0).log.log_end_offset == 1
        with pytest.raises(BadFrameError, match="t-1 does not exist"):
            bind(broker.services)(request(1), CONTEXT)

    live(tmp_path, life=life, now_ms=lambda: 1_000)


def test_batches_that_are_rejected_again_and_again_are_logged_as_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader that moves rejects the batches of each producer, which are retried."""

    def request(partition: int) -> ProduceRequest:
        return ProduceRequest(
            acks=1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition)])]
        )

    async def life(broker: Broker) -> None:
        caplog.clear()
        handler = bind(broker.services)
        for partition in (0, 0, 0, 1, 1, 2, 3, 4):
            handler(request(partition), CONTEXT)
        while len(caplog.records) < 2:
            await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO):
        live(tmp_path, life=life, now_ms=lambda: 1_000)
    assert [record.getMessage() for record in caplog.records][:2] == [
        "rejected Produce: t-0: t-0 does not exist",
        "rejected Produce (UNKNOWN_TOPIC_OR_PARTITION): 7 more in 1 s; most batches: t-0 (2), t-1 (2), t-2 (1) "
        "and 2 more",
    ]
