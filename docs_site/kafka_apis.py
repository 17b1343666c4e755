"""The APIs that a broker of Apache Kafka serves, with their stable versions.

Source: `common/message/*Request.json` in `kafka-clients-4.3.1.jar`, the requests whose `listeners` include `broker`.
The table omits the last version if `latestVersionUnstable` is set. A test of `scripts/conformance` compares
the table with the jar.
"""

from __future__ import annotations

from typing import NamedTuple

KAFKA_VERSION = "4.3.1"


class Api(NamedTuple):
    """An API with inclusive versions."""

    name: str
    min_version: int
    max_version: int


APIS: dict[int, Api] = {
    0: Api("Produce", 3, 13),
    1: Api("Fetch", 4, 18),
    2: Api("ListOffsets", 1, 11),
    3: Api("Metadata", 0, 13),
    8: Api("OffsetCommit", 2, 10),
    9: Api("OffsetFetch", 1, 10),
    10: Api("FindCoordinator", 0, 6),
    11: Api("JoinGroup", 0, 9),
    12: Api("Heartbeat", 0, 4),
    13: Api("LeaveGroup", 0, 5),
    14: Api("SyncGroup", 0, 5),
    15: Api("DescribeGroups", 0, 6),
    16: Api("ListGroups", 0, 5),
    17: Api("SaslHandshake", 0, 1),
    18: Api("ApiVersions", 0, 4),
    19: Api("CreateTopics", 2, 7),
    20: Api("DeleteTopics", 1, 6),
    21: Api("DeleteRecords", 0, 2),
    22: Api("InitProducerId", 0, 5),
    23: Api("OffsetForLeaderEpoch", 2, 4),
    24: Api("AddPartitionsToTxn", 0, 5),
    25: Api("AddOffsetsToTxn", 0, 4),
    26: Api("EndTxn", 0, 5),
    27: Api("WriteTxnMarkers", 1, 2),
    28: Api("TxnOffsetCommit", 0, 5),
    29: Api("DescribeAcls", 1, 3),
    30: Api("CreateAcls", 1, 3),
    31: Api("DeleteAcls", 1, 3),
    32: Api("DescribeConfigs", 1, 4),
    33: Api("AlterConfigs", 0, 2),
    34: Api("AlterReplicaLogDirs", 1, 2),
    35: Api("DescribeLogDirs", 1, 5),
    36: Api("SaslAuthenticate", 0, 2),
    37: Api("CreatePartitions", 0, 3),
    38: Api("CreateDelegationToken", 1, 3),
    39: Api("RenewDelegationToken", 1, 2),
    40: Api("ExpireDelegationToken", 1, 2),
    41: Api("DescribeDelegationToken", 1, 3),
    42: Api("DeleteGroups", 0, 2),
    43: Api("ElectLeaders", 0, 2),
    44: Api("IncrementalAlterConfigs", 0, 1),
    45: Api("AlterPartitionReassignments", 0, 1),
    46: Api("ListPartitionReassignments", 0, 0),
    47: Api("OffsetDelete", 0, 0),
    48: Api("DescribeClientQuotas", 0, 1),
    49: Api("AlterClientQuotas", 0, 1),
    50: Api("DescribeUserScramCredentials", 0, 0),
    51: Api("AlterUserScramCredentials", 0, 0),
    55: Api("DescribeQuorum", 0, 2),
    57: Api("UpdateFeatures", 0, 2),
    60: Api("DescribeCluster", 0, 2),
    61: Api("DescribeProducers", 0, 0),
    64: Api("UnregisterBroker", 0, 0),
    65: Api("DescribeTransactions", 0, 0),
    66: Api("ListTransactions", 0, 2),
    68: Api("ConsumerGroupHeartbeat", 0, 1),
    69: Api("ConsumerGroupDescribe", 0, 1),
    71: Api("GetTelemetrySubscriptions", 0, 0),
    72: Api("PushTelemetry", 0, 0),
    74: Api("ListConfigResources", 0, 1),
    75: Api("DescribeTopicPartitions", 0, 0),
    76: Api("ShareGroupHeartbeat", 1, 1),
    77: Api("ShareGroupDescribe", 1, 1),
    78: Api("ShareFetch", 1, 2),
    79: Api("ShareAcknowledge", 1, 2),
    80: Api("AddRaftVoter", 0, 1),
    81: Api("RemoveRaftVoter", 0, 0),
    83: Api("InitializeShareGroupState", 0, 0),
    84: Api("ReadShareGroupState", 0, 0),
    85: Api("WriteShareGroupState", 0, 1),
    86: Api("DeleteShareGroupState", 0, 0),
    87: Api("ReadShareGroupStateSummary", 0, 1),
    88: Api("StreamsGroupHeartbeat", 0, 0),
    89: Api("StreamsGroupDescribe", 0, 0),
    90: Api("DescribeShareGroupOffsets", 0, 1),
    91: Api("AlterShareGroupOffsets", 0, 0),
    92: Api("DeleteShareGroupOffsets", 0, 0),
}
"""The APIs by key."""
