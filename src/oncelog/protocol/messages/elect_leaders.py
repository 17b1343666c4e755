"""ElectLeaders: elect the preferred or any live replica as leader (KIP-183, KIP-460)."""

from __future__ import annotations

from oncelog.protocol.schema import Message, array, int8, int16, int32, string


class ElectLeadersTopic(Message):
    """`TopicPartitions` of ElectLeadersRequest."""

    topic: str = string()
    partitions: list[int] = array("int32")


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible=2):
    """The request. Without topics, it means every partition."""

    election_type: int = int8(since=1)
    topic_partitions: list[ElectLeadersTopic] | None = array(ElectLeadersTopic, nullable=0)
    timeout_ms: int = int32(default=60000)


class ElectLeadersPartitionResult(Message):
    """`PartitionResult` of ElectLeadersResponse."""

    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0, default=None)


class ReplicaElectionResult(Message):
    """`ReplicaElectionResults` of ElectLeadersResponse."""

    topic: str = string()
    partition_result: list[ElectLeadersPartitionResult] = array(ElectLeadersPartitionResult)


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible=2):
    """The response."""

    throttle_time_ms: int = int32()
    error_code: int = int16(since=1, ignorable=True)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
