"""The clients for asyncio. They have the names and options of the blocking clients in `oncelog`, with `await`.

    async with Producer("localhost:9092", transactional_id="etl-1") as producer:
        async with producer.transaction() as txn:
            await txn.send("out", b"value")

`send` waits only for buffer memory and metadata. To get the record's offset, await the future that it returns.
Timeouts are in seconds.
"""

from __future__ import annotations

from oncelog.client.admin.asynchronous import Admin
from oncelog.client.consumer.asynchronous import Consumer
from oncelog.client.group_offsets import GroupMetadata, OffsetAndMetadata
from oncelog.client.producer.asynchronous import AsyncTransaction as Transaction
from oncelog.client.producer.asynchronous import Producer
from oncelog.client.producer.delivery import RecordFuture, RecordMetadata
from oncelog.client.producer.prepared import PreparedTransaction, TransactionOutcome
from oncelog.client.types import ConsumerRecord

__all__ = [
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "OffsetAndMetadata",
    "PreparedTransaction",
    "Producer",
    "RecordFuture",
    "RecordMetadata",
    "Transaction",
    "TransactionOutcome",
]
