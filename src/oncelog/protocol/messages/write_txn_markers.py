"""WriteTxnMarkers: append the markers that end transactions in partitions (KIP-98, 1228)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int8, int16, int32, int64, string


class WritableTxnMarkerTopic(Message):
    """`Topics` of WriteTxnMarkersRequest."""

    name: str = string()
    partition_indexes: list[int] = array("int32")


class WritableTxnMarker(Message):
    """`Markers` of WriteTxnMarkersRequest."""

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2, ignorable=True)


class WriteTxnMarkersRequest(Message, api_key=27, versions=(1, 2), flexible=1):
    """The request."""

    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Message):
    """`Partitions` of WriteTxnMarkersResponse."""

    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Message):
    """`Topics` of WriteTxnMarkersResponse."""

    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Message):
    """`Markers` of WriteTxnMarkersResponse."""

    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Message, api_key=27, versions=(1, 2), flexible=1):
    """The response."""

    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
