"""DescribeLogDirs: list the partitions in a broker's log directories (KIP-113, 827)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Message):
    """`Topics` of DescribeLogDirsRequest."""

    topic: str = string()
    partitions: list[int] = array("int32")


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 5), flexible=2):
    """The request."""

    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=0)


class DescribeLogDirsPartition(Message):
    """`Partitions` of DescribeLogDirsResponse."""

    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Message):
    """`Topics` of DescribeLogDirsResponse."""

    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Message):
    """`Results` of DescribeLogDirsResponse."""

    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1, ignorable=True)
    usable_bytes: int = int64(since=4, default=-1, ignorable=True)
    is_cordoned: bool = boolean(since=5, ignorable=True)


class DescribeLogDirsResponse(Message, api_key=35, versions=(1, 5), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=3, ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
