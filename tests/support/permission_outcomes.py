"""The outcomes of the table of permissions on Apache Kafka 4.3.1, by the versions of the request.

`_AUTH` is short for `_AUTHORIZATION_FAILED`. `-` is the response itself, `LISTED` is an item without an error.
"""

from __future__ import annotations

OUTCOMES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "Produce": (
        {"3-12": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH", "13": "gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH"},
        {"3-12": "gone=TOPIC_AUTH open=NONE shut=NONE", "13": "gone=UNKNOWN_TOPIC_ID open=NONE shut=NONE"},
    ),
    "Produce, the id is not used": (
        {"3-12": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH", "13": "gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH"},
        {"3-12": "gone=TOPIC_AUTH open=NONE shut=NONE", "13": "gone=UNKNOWN_TOPIC_ID open=NONE shut=NONE"},
    ),
    "Produce, in a transaction": (
        {"3-13": "gone=TRANSACTIONAL_ID_AUTH open=TRANSACTIONAL_ID_AUTH shut=TRANSACTIONAL_ID_AUTH"},
        {
            "3-12": "gone=TOPIC_AUTH open=INVALID_PRODUCER_ID_MAPPING shut=TOPIC_AUTH",
            "13": "gone=UNKNOWN_TOPIC_ID open=INVALID_PRODUCER_ID_MAPPING shut=TOPIC_AUTH",
        },
    ),
    "Fetch": (
        {
            "4-12": "-=NONE gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH",
            "13-18": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH",
        },
        {
            "4-12": "-=NONE gone=TOPIC_AUTH open=NONE shut=NONE",
            "13-18": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=NONE",
        },
    ),
    "Fetch of a follower": (
        {"4-18": "-=NONE open=TOPIC_AUTH"},
        {"4-18": "-=NONE open=NOT_LEADER_OR_FOLLOWER"},
    ),
    "ListOffsets": (
        {"1-11": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"1-11": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "OffsetForLeaderEpoch": (
        {"2-4": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"2-4": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "OffsetForLeaderEpoch of a broker": (
        {"2-4": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"2-4": "gone=UNKNOWN_TOPIC_OR_PARTITION open=NONE shut=NONE"},
    ),
    "DeleteRecords": (
        {"0-2": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0-2": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "DescribeProducers": (
        {"0": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "LeaveGroup": (
        {"0-5": "-=GROUP_AUTH"},
        {"0-5": "-=UNKNOWN_MEMBER_ID"},
    ),
    "JoinGroup": (
        {"0-9": "-=GROUP_AUTH"},
        {"0-9": "-=INVALID_SESSION_TIMEOUT"},
    ),
    "SyncGroup": (
        {"0-5": "-=GROUP_AUTH"},
        {"0-5": "-=UNKNOWN_MEMBER_ID"},
    ),
    "Heartbeat": (
        {"0-4": "-=GROUP_AUTH"},
        {"0-4": "-=UNKNOWN_MEMBER_ID"},
    ),
    "OffsetCommit": (
        {"2-10": "gone=GROUP_AUTH open=GROUP_AUTH shut=GROUP_AUTH"},
        {"2-9": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH", "10": "gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH"},
    ),
    "OffsetCommit of a topic": (
        {"2-9": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH", "10": "gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH"},
        {"2-9": "gone=TOPIC_AUTH open=NONE shut=NONE", "10": "gone=UNKNOWN_TOPIC_ID open=NONE shut=NONE"},
    ),
    "OffsetFetch": (
        {
            "1": "-=NONE gone=GROUP_AUTH open=GROUP_AUTH shut=GROUP_AUTH",
            "2-7": "-=GROUP_AUTH",
            "8-10": "-=NONE shut=GROUP_AUTH",
        },
        {
            "1-9": "-=NONE gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH",
            "10": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH",
        },
    ),
    "OffsetFetch of a topic": (
        {
            "1-9": "-=NONE gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH",
            "10": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH",
        },
        {"1-9": "-=NONE gone=TOPIC_AUTH open=NONE shut=NONE", "10": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=NONE"},
    ),
    "OffsetFetch of all topics": (
        {"2-10": "-=NONE open=NONE"},
        {"2-10": "-=NONE open=NONE shut=NONE"},
    ),
    "FindCoordinator of groups": (
        {"0-3": "-=GROUP_AUTH", "4-6": "-=NONE open=NONE shut=GROUP_AUTH"},
        {"0-3": "-=NONE", "4-6": "-=NONE open=NONE shut=NONE"},
    ),
    "DescribeGroups": (
        {"0-6": "gone=GROUP_AUTH open=NONE shut=GROUP_AUTH"},
        {"0-6": "gone=GROUP_AUTH open=NONE shut=NONE"},
    ),
    "ConsumerGroupHeartbeat": (
        {"0-1": "-=GROUP_AUTH"},
        {"0-1": "-=TOPIC_AUTH"},
    ),
    "ConsumerGroupHeartbeat of a topic": (
        {"0-1": "-=TOPIC_AUTH"},
        {"0-1": "-=GROUP_ID_NOT_FOUND"},
    ),
    "ConsumerGroupDescribe": (
        {"0-1": "gone=GROUP_AUTH open=GROUP_ID_NOT_FOUND shut=GROUP_AUTH"},
        {"0-1": "gone=GROUP_AUTH open=GROUP_ID_NOT_FOUND shut=GROUP_ID_NOT_FOUND"},
    ),
    "ListGroups": (
        {"0-5": "-=NONE open=LISTED"},
        {"0-5": "-=NONE open=LISTED shut=LISTED"},
    ),
    "ListGroups of the cluster": (
        {"0-5": "-=NONE open=LISTED"},
        {"0-5": "-=NONE open=LISTED shut=LISTED"},
    ),
    "DeleteGroups": (
        {"0-2": "gone=GROUP_AUTH"},
        {"0-2": "gone=GROUP_ID_NOT_FOUND"},
    ),
    "OffsetDelete": (
        {"0": "-=GROUP_AUTH"},
        {"0": "-=GROUP_ID_NOT_FOUND"},
    ),
    "OffsetDelete of a topic": (
        {"0": "-=NONE gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0": "-=NONE gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "InitProducerId": (
        {"0-6": "-=TRANSACTIONAL_ID_AUTH"},
        {"0-6": "-=NONE"},
    ),
    "InitProducerId with two-phase commit": (
        {"6": "-=TRANSACTIONAL_ID_AUTH"},
        {"6": "-=NONE"},
    ),
    "InitProducerId without an id": (
        {"0-6": "-=CLUSTER_AUTH"},
        {"0-6": "-=NONE"},
    ),
    "FindCoordinator of transactions": (
        {"1-3": "-=TRANSACTIONAL_ID_AUTH", "4-6": "-=NONE open=NONE shut=TRANSACTIONAL_ID_AUTH"},
        {"1-3": "-=NONE", "4-6": "-=NONE open=NONE shut=NONE"},
    ),
    "AddPartitionsToTxn": (
        {"0-3": "-=NONE gone=TRANSACTIONAL_ID_AUTH open=TRANSACTIONAL_ID_AUTH shut=TRANSACTIONAL_ID_AUTH"},
        {"0-3": "-=NONE gone=TOPIC_AUTH open=OPERATION_NOT_ATTEMPTED shut=TOPIC_AUTH"},
    ),
    "AddPartitionsToTxn of a topic": (
        {"0-3": "-=NONE gone=TOPIC_AUTH open=OPERATION_NOT_ATTEMPTED shut=TOPIC_AUTH"},
        {"0-3": "-=NONE gone=TOPIC_AUTH open=OPERATION_NOT_ATTEMPTED shut=OPERATION_NOT_ATTEMPTED"},
    ),
    "AddPartitionsToTxn of a broker": (
        {"4-5": "-=CLUSTER_AUTH"},
        {"4-5": "-=NONE open=INVALID_PRODUCER_ID_MAPPING+LISTED"},
    ),
    "AddOffsetsToTxn": (
        {"0-4": "-=TRANSACTIONAL_ID_AUTH"},
        {"0-4": "-=INVALID_PRODUCER_ID_MAPPING"},
    ),
    "TxnOffsetCommit": (
        {"0-5": "gone=TRANSACTIONAL_ID_AUTH open=TRANSACTIONAL_ID_AUTH shut=TRANSACTIONAL_ID_AUTH"},
        {"0-5": "gone=TOPIC_AUTH open=INVALID_PRODUCER_ID_MAPPING shut=TOPIC_AUTH"},
    ),
    "AddOffsetsToTxn of a group": (
        {"0-4": "-=GROUP_AUTH"},
        {"0-4": "-=INVALID_PRODUCER_ID_MAPPING"},
    ),
    "TxnOffsetCommit of a group": (
        {"0-5": "gone=GROUP_AUTH open=GROUP_AUTH shut=GROUP_AUTH"},
        {"0-5": "gone=TOPIC_AUTH open=INVALID_PRODUCER_ID_MAPPING shut=TOPIC_AUTH"},
    ),
    "TxnOffsetCommit of a topic": (
        {"0-5": "gone=TOPIC_AUTH open=INVALID_PRODUCER_ID_MAPPING shut=TOPIC_AUTH"},
        {"0-5": "gone=TOPIC_AUTH open=INVALID_PRODUCER_ID_MAPPING shut=INVALID_PRODUCER_ID_MAPPING"},
    ),
    "EndTxn": (
        {"0-5": "-=TRANSACTIONAL_ID_AUTH"},
        {"0-5": "-=INVALID_PRODUCER_ID_MAPPING"},
    ),
    "WriteTxnMarkers": (
        {"1-2": "gone=CLUSTER_AUTH"},
        {"1-2": "gone=UNKNOWN_TOPIC_OR_PARTITION"},
    ),
    "DescribeTransactions": (
        {"0": "gone=TRANSACTIONAL_ID_AUTH open=NONE shut=TRANSACTIONAL_ID_AUTH"},
        {"0": "gone=TRANSACTIONAL_ID_AUTH open=NONE shut=NONE"},
    ),
    "ListTransactions": (
        {"0-2": "-=NONE open=LISTED"},
        {"0-2": "-=NONE open=LISTED shut=LISTED"},
    ),
    "Metadata": (
        {"0-13": "-=NONE gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0-13": "-=NONE gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "Metadata by id": (
        {"12-13": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=TOPIC_AUTH"},
        {"12-13": "-=NONE gone=UNKNOWN_TOPIC_ID open=NONE shut=NONE"},
    ),
    "Metadata of all topics": (
        {"0-13": "-=NONE open=NONE"},
        {"0-13": "-=NONE open=NONE shut=NONE"},
    ),
    "DescribeTopicPartitions": (
        {"0": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "DescribeTopicPartitions of all topics": (
        {"0": "open=NONE"},
        {"0": "open=NONE shut=NONE"},
    ),
    "CreateTopics": (
        {"2-7": "new=TOPIC_AUTH new.configs=NONE"},
        {"2-4": "new=NONE new.configs=NONE", "5-7": "new=NONE new.configs=TOPIC_AUTH"},
    ),
    "CreateTopics, its settings": (
        {"5-7": "open-new=NONE open-new.configs=TOPIC_AUTH"},
        {"5-7": "open-new=NONE open-new.configs=NONE"},
    ),
    "DeleteTopics that do not exist": (
        {"1-6": "gone=TOPIC_AUTH"},
        {"1-6": "gone=UNKNOWN_TOPIC_OR_PARTITION"},
    ),
    "DeleteTopics that exist": (
        {"1-6": "shut=TOPIC_AUTH"},
        {},
    ),
    "DeleteTopics by id": (
        {"6": "gone=UNKNOWN_TOPIC_ID shut=TOPIC_AUTH"},
        {},
    ),
    "CreatePartitions": (
        {"0-3": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0-3": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "DescribeConfigs": (
        {"1-4": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"1-4": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "AlterConfigs": (
        {"0-2": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0-2": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "IncrementalAlterConfigs": (
        {"0-1": "gone=TOPIC_AUTH open=NONE shut=TOPIC_AUTH"},
        {"0-1": "gone=TOPIC_AUTH open=NONE shut=NONE"},
    ),
    "AlterPartitionReassignments": (
        {"0-1": "-=CLUSTER_AUTH open=CLUSTER_AUTH"},
        {"0-1": "-=NONE open=NO_REASSIGNMENT_IN_PROGRESS"},
    ),
    "ElectLeaders": (
        {"0": "-=NONE open=CLUSTER_AUTH", "1-2": "-=CLUSTER_AUTH open=CLUSTER_AUTH"},
        {"0-2": "-=NONE open=ELECTION_NOT_NEEDED"},
    ),
    "DescribeAcls": (
        {"1-3": "-=CLUSTER_AUTH"},
        {"1-3": "-=NONE"},
    ),
    "CreateAcls": (
        {"1-3": "-=CLUSTER_AUTH"},
        {"1-3": "-=INVALID_REQUEST"},
    ),
    "DeleteAcls": (
        {"1-3": "-=CLUSTER_AUTH"},
        {"1-3": "-=NONE"},
    ),
    "ListPartitionReassignments": (
        {"0": "-=CLUSTER_AUTH"},
        {"0": "-=NONE"},
    ),
    "DescribeLogDirs": (
        {"1-2": "-=NONE", "3-5": "-=CLUSTER_AUTH"},
        {"1-5": "-=NONE directory=NONE"},
    ),
    "DescribeCluster": (
        {"0-2": "-=NONE"},
        {"0-2": "-=NONE"},
    ),
    "DescribeQuorum": (
        {"0-2": "-=CLUSTER_AUTH"},
        {"0-2": "-=NONE"},
    ),
    "DescribeUserScramCredentials": (
        {"0": "-=CLUSTER_AUTH"},
        {"0": "-=NONE"},
    ),
    "AlterUserScramCredentials": (
        {"0": "-=CLUSTER_AUTH"},
        {"0": "-=RESOURCE_NOT_FOUND"},
    ),
    "DescribeClientQuotas": (
        {"0-1": "-=CLUSTER_AUTH"},
        {"0-1": "-=NONE"},
    ),
    "AlterClientQuotas": (
        {"0-1": "-=CLUSTER_AUTH"},
        {"0-1": "-=NONE"},
    ),
    "ListConfigResources": (
        {"0-1": "-=CLUSTER_AUTH"},
        {"0-1": "-=NONE"},
    ),
    "DescribeConfigs of a broker": (
        {"1-4": "1=CLUSTER_AUTH"},
        {"1-4": "1=NONE"},
    ),
    "DescribeConfigs of a logger": (
        {"1-4": "1=CLUSTER_AUTH"},
        {"1-4": "1=NONE"},
    ),
    "IncrementalAlterConfigs of a broker": (
        {"0-1": "1=CLUSTER_AUTH"},
        {"0-1": "1=NONE"},
    ),
    "DescribeConfigs of client metrics": (
        {"1-4": "all=CLUSTER_AUTH"},
        {"1-4": "all=NONE"},
    ),
    "IncrementalAlterConfigs of client metrics": (
        {"0-1": "all=CLUSTER_AUTH"},
        {"0-1": "all=NONE"},
    ),
    "DescribeConfigs of a group": (
        {"1-4": "shut=GROUP_AUTH"},
        {"1-4": "shut=NONE"},
    ),
    "IncrementalAlterConfigs of a group": (
        {"0-1": "shut=GROUP_AUTH"},
        {"0-1": "shut=NONE"},
    ),
    "GetTelemetrySubscriptions": (
        {"0": "-=NONE"},
        {},
    ),
    "PushTelemetry without an id": (
        {"0": "-=INVALID_REQUEST"},
        {},
    ),
    "CreateDelegationToken without a login": (
        {"1-3": "-=DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"},
        {},
    ),
    "RenewDelegationToken without a login": (
        {"1-2": "-=DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"},
        {},
    ),
    "ExpireDelegationToken without a login": (
        {"1-2": "-=DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"},
        {},
    ),
    "DescribeDelegationToken without a login": (
        {"1-3": "-=DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"},
        {},
    ),
    "UpdateFeatures": (
        {"0-2": "-=CLUSTER_AUTH"},
        {"0-2": "-=NONE"},
    ),
    "ApiVersions": (
        {"0-4": "-=NONE"},
        {},
    ),
}
"""By row: the outcome without the permission, and with it."""
