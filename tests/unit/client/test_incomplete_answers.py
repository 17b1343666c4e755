"""A response that omits a requested item is an error: it does not mean that the request has worked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.admin import configs, groups, hanging, topics, transactions
from oncelog.client.connections.versions import ByVersion
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.client.discovery.topology import Partition, Topic, Topology
from oncelog.client.producer.coordinator_requests import handle, next_request
from oncelog.client.requests.offsets import delete_records
from oncelog.client.requests.partition_fetch import fetch_partition
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from oncelog.protocol.messages.find_coordinator import FindCoordinatorResponse
from oncelog.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse
from oncelog.protocol.schema import NO_UUID, Message
from support.coordinator_answers import asking


class Cluster:
    """Every broker answers with an empty response."""

    request_timeout_ms = 1_000
    api_timeout_ms = 1_000

    def __init__(self) -> None:
        self.topology = Topology()

    async def call(self, *arguments: Any, **options: Any) -> Message:
        request = next(each for each in arguments if isinstance(each, Message | ByVersion))
        kind = request.kind if isinstance(request, ByVersion) else type(request)
        return messages(ApiKey(kind.API_KEY))[1]()

    call_any = call_controller = call_coordinator = call_broker = call_leader = call

    async def topic(self, name: str, **_: object) -> Topic:
        return Topic(name, NO_UUID, False, {0: Partition(1, 0, (1,), (1,))})

    async def partition(self, topic: str, partition: int) -> Partition:
        return Partition(1, 0, (1,), (1,))


@pytest.mark.parametrize(
    "call",
    [
        lambda cluster: groups.delete_groups(cluster, "g"),
        lambda cluster: groups.delete_offsets(cluster, "g", [("t", 0)]),
        lambda cluster: groups.remove_members(cluster, "g", ["static"]),
        lambda cluster: topics.create_topics(cluster, "t"),
        lambda cluster: topics.create_partitions(cluster, "t", 3),
        lambda cluster: topics.delete_topics(cluster, "t"),
        lambda cluster: configs.alter_configs(cluster, "topic", "t", {"retention.ms": "1"}),
        lambda cluster: configs.alter_topic_configs(cluster, "t", {"retention.ms": "1"}),
        lambda cluster: hanging.find_hanging(cluster, "t"),
        lambda cluster: transactions.abort_transaction(cluster, "t", 0, producer_id=1, producer_epoch=0),
        lambda cluster: transactions.describe_transaction(cluster, "t"),
        lambda cluster: transactions.describe_producers(cluster, "t", 0),
        lambda cluster: delete_records(cluster, {("t", 0): 1}),
        lambda cluster: fetch_partition(cluster, ("t", 0), 0),
    ],
    ids=[
        *("delete groups", "delete offsets", "remove members", "create topics"),
        *("create partitions", "delete topics", "alter configs", "alter topic configs", "find hanging", "abort"),
        *("describe transaction", "describe producers", "delete records", "fetch partition"),
    ],
)
def test_empty_answer_is_not_a_success(call: Callable[[Any], Awaitable[object]]) -> None:
    async def body() -> None:
        with pytest.raises(errors.ServerError, match="response does not contain"):
            await call(Cluster())

    asyncio.run(body())


def test_broker_that_omits_the_coordinator_is_asked_again() -> None:
    """Before, an IndexError ended the producer."""

    class Connection:
        closed = False
        in_flight = 0
        address = "model:1"

        def version_for(self, kind: object) -> int:
            return 4

        async def call(self, request: Message, version: int) -> Message:
            return FindCoordinatorResponse()

    class OneBroker(ClusterClient):
        async def _any_connection(self) -> Any:
            return Connection()

    async def body() -> None:
        async with OneBroker("nowhere:1") as cluster:
            with pytest.raises(errors.RetriableError, match="response does not contain"):
                await cluster.coordinator("transaction", "id")

    asyncio.run(body())


@pytest.mark.parametrize(
    ("request_name", "response"),
    [("AddPartitionsToTxn", AddPartitionsToTxnResponse()), ("TxnOffsetCommit", TxnOffsetCommitResponse())],
)
def test_coordinator_that_omits_partitions_is_asked_again(request_name: str, response: Message) -> None:
    """Before, the partitions counted as part of the transaction, and their records would never have got a marker."""
    manager = asking(request_name)
    asked = next_request(manager, drained=True)
    assert asked is not None
    assert handle(manager, asked, response) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not manager.joined
    assert ("t", 0) not in manager.partitions
    again = next_request(manager, drained=True)
    assert again is not None
    assert type(again.request) is type(asked.request)
