import asyncio
from pathlib import Path

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.config.settings import load
from oncelog.broker.handlers.produce import bind
from oncelog.broker.requests.context import RequestContext
from oncelog.cluster.store_memory import MemoryStore
from oncelog.log.disk import OsDisk
from oncelog.net.server import BadFrameError
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.records import Record, build_batch

CONTEXT = RequestContext(ApiKey.PRODUCE, 9, 1, "", "", 1)


def test_error_with_acks_0_closes_the_connection_and_logs_no_fault(tmp_path: Path) -> None:
    def request(partition: int) -> ProduceRequest:
        data = PartitionProduceData(index=partition, records=bytes(build_batch([Record(0, 1_000, b"k", b"v")])))
        return ProduceRequest(acks=0, topic_data=[TopicProduceData(name="t", partition_data=[data])])

    async def run() -> None:
        config = load({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)})
        broker = Broker(config, disk=OsDisk(), store=MemoryStore(lambda: 0), now_ms=lambda: 1_000)
        await broker.start()
        await broker.topics.create("t", partitions=1)
        assert bind(broker.parts)(request(0), CONTEXT) is None
        assert broker.partitions.find("t", 0).log.log_end_offset == 1
        with pytest.raises(BadFrameError, match="t-1 does not exist"):
            bind(broker.parts)(request(1), CONTEXT)
        await broker.stop()

    asyncio.run(run())
