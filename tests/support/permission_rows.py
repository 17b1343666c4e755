"""The rows of the table of permissions: for each API, a request, and the ACLs that are enough for it, or not enough.

`support.permission_outcomes` has the outcomes.

`open` are resources that the client may use, `shut` are others, and `gone` do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from oncelog.protocol.apis import ApiKey
from oncelog.protocol.kinds import AclOperation as Op
from oncelog.protocol.kinds import AclResource as On
from oncelog.protocol.records import Record, build_batch
from support.permissions import Grant

OPEN, SHUT, GONE = "open", "shut", "gone"
GONE_ID = UUID(int=7, version=4)
BATCH = bytes(build_batch([Record(0, 1_700_000_000_000, None, b"v")]))
IN_TRANSACTION = bytes(
    build_batch(
        [Record(0, 1_700_000_000_000, None, b"v")],
        producer_id=99_999,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
)
Fields = Callable[[int, Mapping[str, UUID]], dict[str, Any]]
"""Return the request's fields for a version and the topics' ids."""


class Row(NamedTuple):
    """One row of the table."""

    name: str
    api: ApiKey
    fields: Fields
    sufficient: tuple[tuple[Grant, ...], ...]
    """Sets of ACLs, each of which is enough."""
    insufficient: tuple[Grant, ...]
    """ACLs that are not enough together."""
    from_version: int = 0
    up_to: int = 99
    given: tuple[Grant, ...] = ()
    """ACLs that the client has without and with the permission."""
    denied: Op = Op.ALL
    """The operation that is denied, to take back what the sufficient ACLs allow."""
    untried: tuple[tuple[Grant, ...], ...] = ()
    """Sets of ACLs that are enough, too, but that other tests try: the request would delete what later rows use."""


def spelled(api: ApiKey) -> str:
    return api.name.title().replace("_", "")


def grants(resource: On, *operations: Op, name: str = SHUT) -> tuple[tuple[Grant, ...], ...]:
    """Return one set for each operation."""
    named = "kafka-cluster" if resource is On.CLUSTER else name
    return tuple((Grant(operation, resource, named),) for operation in operations)


def lacking(resource: On, *operations: Op, name: str = SHUT) -> tuple[Grant, ...]:
    return tuple(each for (each,) in grants(resource, *operations, name=name))


DESCRIBING = (Op.DESCRIBE, Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.ALL)
NOT_DESCRIBING = (Op.CREATE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)


def by_topic(
    part: Callable[[str], dict[str, Any]], names: tuple[str, ...] = (OPEN, SHUT, GONE)
) -> list[dict[str, Any]]:
    return [part(name) for name in names]


WRITE_OPEN = lacking(On.TOPIC, Op.WRITE, name=OPEN)


def records() -> Iterator[Row]:
    def produced(records: bytes, **fields: Any) -> Fields:
        def made(version: int, ids: Mapping[str, UUID]) -> dict[str, Any]:
            data = [{"index": 0, "records": records}]
            parts = by_topic(lambda name: {"name": name, "topic_id": ids[name], "partition_data": data})
            return {"acks": -1, "timeout_ms": 10_000, "topic_data": parts, **fields}

        return made

    write = grants(On.TOPIC, Op.WRITE, Op.ALL)
    no_write = lacking(On.TOPIC, Op.READ, Op.DESCRIBE, Op.CREATE, Op.ALTER, Op.DELETE)
    yield Row(
        "Produce",
        ApiKey.PRODUCE,
        produced(BATCH),
        write,
        no_write,
        given=WRITE_OPEN,
    )
    yield Row(
        "Produce, the id is not used",
        ApiKey.PRODUCE,
        produced(BATCH, transactional_id=SHUT),
        write,
        no_write,
        given=WRITE_OPEN,
    )
    yield Row(
        "Produce, in a transaction",
        ApiKey.PRODUCE,
        produced(IN_TRANSACTION, transactional_id=SHUT),
        grants(On.TRANSACTIONAL_ID, Op.WRITE, Op.ALL),
        lacking(On.TRANSACTIONAL_ID, Op.DESCRIBE, Op.READ, Op.TWO_PHASE_COMMIT),
        given=WRITE_OPEN,
    )
    yield Row(
        "Fetch",
        ApiKey.FETCH,
        lambda version, ids: {
            "session_epoch": -1,
            "max_bytes": 1000,
            "topics": by_topic(
                lambda name: {
                    "topic": name,
                    "topic_id": ids[name],
                    "partitions": [{"partition": 0, "partition_max_bytes": 1000}],
                }
            ),
        },
        grants(On.TOPIC, Op.READ, Op.ALL),
        lacking(On.TOPIC, Op.WRITE, Op.DESCRIBE, Op.CREATE, Op.ALTER, Op.DELETE),
    )
    yield Row(
        "Fetch of a follower",
        ApiKey.FETCH,
        lambda version, ids: {
            "session_epoch": -1,
            "max_bytes": 1000,
            **({"replica_state": {"replica_id": 77, "replica_epoch": -1}} if version >= 15 else {"replica_id": 77}),
            "topics": [
                {"topic": OPEN, "topic_id": ids[OPEN], "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}
            ],
        },
        grants(On.CLUSTER, Op.CLUSTER_ACTION, Op.ALL),
        lacking(On.CLUSTER, Op.DESCRIBE, Op.ALTER),
    )
    yield Row(
        "ListOffsets",
        ApiKey.LIST_OFFSETS,
        lambda version, ids: {
            "replica_id": -1,
            "topics": by_topic(lambda name: {"name": name, "partitions": [{"timestamp": -1}]}),
        },
        grants(On.TOPIC, *DESCRIBING),
        lacking(On.TOPIC, *NOT_DESCRIBING),
    )
    yield Row(
        "OffsetForLeaderEpoch",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        lambda version, ids: {
            "replica_id": -2,
            "topics": by_topic(
                lambda name: {"topic": name, "partitions": [{"current_leader_epoch": -1, "leader_epoch": 0}]}
            ),
        },
        grants(On.TOPIC, *DESCRIBING),
        lacking(On.TOPIC, *NOT_DESCRIBING),
    )
    yield Row(
        "OffsetForLeaderEpoch of a broker",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        lambda version, ids: {
            "replica_id": -2,
            "topics": by_topic(
                lambda name: {"topic": name, "partitions": [{"current_leader_epoch": -1, "leader_epoch": 0}]}
            ),
        },
        grants(On.CLUSTER, Op.CLUSTER_ACTION),
        lacking(On.CLUSTER, Op.DESCRIBE, Op.ALTER),
    )
    yield Row(
        "DeleteRecords",
        ApiKey.DELETE_RECORDS,
        lambda version, ids: {
            "timeout_ms": 10_000,
            "topics": by_topic(lambda name: {"name": name, "partitions": [{"partition_index": 0, "offset": 0}]}),
        },
        grants(On.TOPIC, Op.DELETE, Op.ALL),
        lacking(On.TOPIC, Op.READ, Op.WRITE, Op.DESCRIBE, Op.ALTER),
    )
    yield Row(
        "DescribeProducers",
        ApiKey.DESCRIBE_PRODUCERS,
        lambda version, ids: {"topics": by_topic(lambda name: {"name": name, "partition_indexes": [0]})},
        grants(On.TOPIC, Op.READ, Op.ALL),
        lacking(On.TOPIC, Op.WRITE, Op.DESCRIBE, Op.ALTER),
    )


def groups() -> Iterator[Row]:
    group = grants(On.GROUP, Op.READ, Op.ALL)
    no_group = lacking(On.GROUP, Op.DESCRIBE, Op.DELETE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
    membership = {
        ApiKey.JOIN_GROUP: {
            "session_timeout_ms": 1,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        ApiKey.SYNC_GROUP: {"member_id": "m", "protocol_type": "consumer", "protocol_name": "range"},
        ApiKey.HEARTBEAT: {"member_id": "m"},
    }
    yield Row(
        "LeaveGroup",
        ApiKey.LEAVE_GROUP,
        lambda version, ids: {
            "group_id": SHUT,
            **({"members": [{"member_id": "m"}]} if version >= 3 else {"member_id": "m"}),
        },
        group,
        no_group,
    )
    for api, fields in membership.items():
        yield Row(
            spelled(api),
            api,
            lambda version, ids, fields=fields: {"group_id": SHUT, **fields},  # type: ignore[misc]
            group,
            no_group,
        )

    yield Row("ConsumerGroupHeartbeat", ApiKey.CONSUMER_GROUP_HEARTBEAT, heartbeat_of(SHUT), group, no_group)
    yield Row(
        "ConsumerGroupHeartbeat of a topic",
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        heartbeat_of(OPEN),
        grants(On.TOPIC, *DESCRIBING),
        lacking(On.TOPIC, *NOT_DESCRIBING),
    )

    def offsets(version: int, ids: Mapping[str, UUID], group: str = SHUT) -> dict[str, Any]:
        part = [{"partition_index": 0, "committed_offset": 1}]
        return {
            "group_id": group,
            "topics": by_topic(lambda name: {"name": name, "topic_id": ids[name], "partitions": part}),
        }

    yield Row("OffsetCommit", ApiKey.OFFSET_COMMIT, offsets, group, no_group)
    yield Row(
        "OffsetCommit of a topic",
        ApiKey.OFFSET_COMMIT,
        lambda version, ids: offsets(version, ids, OPEN),
        grants(On.TOPIC, Op.READ, Op.ALL),
        lacking(On.TOPIC, Op.WRITE, Op.DESCRIBE, Op.ALTER),
    )

    def asked(group: str, *, everything: bool = False) -> Fields:
        def made(version: int, ids: Mapping[str, UUID]) -> dict[str, Any]:
            wanted = by_topic(lambda name: {"name": name, "topic_id": ids[name], "partition_indexes": [0]})
            old = by_topic(lambda name: {"name": name, "partition_indexes": [0]})
            if version >= 8:
                return {"groups": [{"group_id": group, "topics": None if everything else wanted}]}
            return {"group_id": group, "topics": None if everything else old}

        return made

    describe = grants(On.GROUP, Op.DESCRIBE, Op.READ, Op.DELETE, Op.ALL)
    no_describe = lacking(On.GROUP, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)
    yield Row("OffsetFetch", ApiKey.OFFSET_FETCH, asked(SHUT), describe, no_describe)
    yield Row(
        "OffsetFetch of a topic",
        ApiKey.OFFSET_FETCH,
        asked(OPEN),
        grants(On.TOPIC, *DESCRIBING),
        lacking(On.TOPIC, *NOT_DESCRIBING),
    )
    yield Row(
        "OffsetFetch of all topics",
        ApiKey.OFFSET_FETCH,
        asked(OPEN, everything=True),
        grants(On.TOPIC, *DESCRIBING),
        lacking(On.TOPIC, *NOT_DESCRIBING),
        from_version=2,
    )
    yield Row(
        "FindCoordinator of groups",
        ApiKey.FIND_COORDINATOR,
        lambda version, ids: (
            {"key_type": 0, "coordinator_keys": [OPEN, SHUT]} if version >= 4 else {"key_type": 0, "key": SHUT}
        ),
        describe,
        no_describe,
    )
    yield Row(
        "DescribeGroups",
        ApiKey.DESCRIBE_GROUPS,
        lambda version, ids: {"groups": [OPEN, SHUT, GONE]},
        describe,
        no_describe,
    )
    yield Row(
        "ConsumerGroupDescribe",
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        lambda version, ids: {"group_ids": [OPEN, SHUT, GONE]},
        describe,
        no_describe,
    )
    yield Row("ListGroups", ApiKey.LIST_GROUPS, lambda version, ids: {}, describe, no_describe)
    yield Row(
        "ListGroups of the cluster",
        ApiKey.LIST_GROUPS,
        lambda version, ids: {},
        grants(On.CLUSTER, Op.DESCRIBE, Op.ALTER, Op.ALL),
        lacking(On.CLUSTER, Op.CREATE, Op.CLUSTER_ACTION, Op.IDEMPOTENT_WRITE),
    )
    yield Row(
        "DeleteGroups",
        ApiKey.DELETE_GROUPS,
        lambda version, ids: {"groups_names": [GONE]},
        grants(On.GROUP, Op.DELETE, Op.ALL, name=GONE),
        lacking(On.GROUP, Op.READ, Op.DESCRIBE, name=GONE),
    )
    yield Row(
        "OffsetDelete",
        ApiKey.OFFSET_DELETE,
        offsets_deleted(GONE),
        grants(On.GROUP, Op.DELETE, Op.ALL, name=GONE),
        lacking(On.GROUP, Op.READ, Op.DESCRIBE, name=GONE),
    )
    yield Row(
        "OffsetDelete of a topic",
        ApiKey.OFFSET_DELETE,
        offsets_deleted(OPEN),
        grants(On.TOPIC, Op.READ, Op.ALL),
        lacking(On.TOPIC, Op.WRITE, Op.DESCRIBE, Op.ALTER),
    )


def heartbeat_of(group: str) -> Fields:
    """Send a heartbeat of an unknown member that subscribes to the topics."""
    return lambda version, ids: {
        "group_id": group,
        "member_id": "m",
        "member_epoch": 1,
        "subscribed_topic_names": [OPEN, SHUT],
    }


def offsets_deleted(group: str) -> Fields:
    """Delete the offsets of partitions that do not have any."""
    return lambda version, ids: {
        "group_id": group,
        "topics": by_topic(lambda name: {"name": name, "partitions": [{"partition_index": 0}]}),
    }
