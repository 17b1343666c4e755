"""Build the response to a request that failed as a whole, in the form of its API.

Some responses have an error field. The others carry the error in each topic, partition, group or resource that the
request names. Source: Kafka's `AbstractRequest.getErrorResponse`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.schema import Message

_CODES = ("error_code", "partition_error_code")
_KEYS = (
    *("name", "topic", "topic_id", "index", "partition", "partition_index"),
    *("producer_id", "group_id", "resource_type", "resource_name", "entity"),
)
"""Fields that an element of the request and the matching element of the response may share."""
_OFFSETS = ("base_offset", "high_watermark", "committed_offset", "low_watermark")
"""Offsets that are unknown after an error: -1."""


class _Each(NamedTuple):
    """Map each element of the request's array `asked` to one of the response's array `answered`."""

    asked: str
    answered: str
    key: str = ""
    """The response field that gets the element, or its partition or name if the element is a struct."""
    inner: _Each | None = None


_BY_PARTITION = _Each("topics", "topics", inner=_Each("partitions", "partitions"))
_BY_INDEX = _Each("topics", "topics", inner=_Each("partition_indexes", "partitions", "partition_index"))

_ARRAYS: dict[int, tuple[_Each, ...]] = {
    ApiKey.PRODUCE: (_Each("topic_data", "responses", inner=_Each("partition_data", "partition_responses")),),
    ApiKey.FETCH: (_Each("topics", "responses", inner=_Each("partitions", "partitions", "partition_index")),),
    ApiKey.LIST_OFFSETS: (_BY_PARTITION,),
    ApiKey.METADATA: (_Each("topics", "topics"),),
    ApiKey.OFFSET_COMMIT: (_BY_PARTITION,),
    ApiKey.OFFSET_FETCH: (_BY_INDEX, _Each("groups", "groups")),
    ApiKey.FIND_COORDINATOR: (_Each("coordinator_keys", "coordinators", "key"),),
    ApiKey.DESCRIBE_GROUPS: (_Each("groups", "groups", "group_id"),),
    ApiKey.CREATE_TOPICS: (_Each("topics", "topics"),),
    ApiKey.DELETE_TOPICS: (_Each("topics", "responses"), _Each("topic_names", "responses", "name")),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_BY_PARTITION,),
    ApiKey.DELETE_RECORDS: (_BY_PARTITION,),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        _Each(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            inner=_Each("partitions", "results_by_partition", "partition_index"),
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: (_Each("markers", "markers", inner=_BY_INDEX),),
    ApiKey.TXN_OFFSET_COMMIT: (_BY_PARTITION,),
    ApiKey.DESCRIBE_CONFIGS: (_Each("resources", "results"),),
    ApiKey.ALTER_CONFIGS: (_Each("resources", "responses"),),
    ApiKey.CREATE_PARTITIONS: (_Each("topics", "results"),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_Each("resources", "responses"),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (_Each("topics", "responses", inner=_Each("partitions", "partitions")),),
    ApiKey.ELECT_LEADERS: (
        _Each(
            "topic_partitions",
            "replica_election_results",
            inner=_Each("partitions", "partition_result", "partition_id"),
        ),
    ),
    ApiKey.DELETE_GROUPS: (_Each("groups_names", "results", "group_id"),),
    ApiKey.DESCRIBE_PRODUCERS: (_BY_INDEX,),
    ApiKey.DESCRIBE_TRANSACTIONS: (_Each("transactional_ids", "transaction_states", "transactional_id"),),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_Each("group_ids", "groups", "group_id"),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_Each("topics", "topics"),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        _Each("deletions", "results", "user"),
        _Each("upsertions", "results", "user"),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (_Each("entries", "entries"),),
    ApiKey.CREATE_ACLS: (_Each("creations", "results"),),
    ApiKey.DELETE_ACLS: (_Each("filters", "filter_results"),),
}


def error_answer(request: Message, version: int, code: ErrorCode) -> Message:
    """Return the response that carries `code` in a version of the request's API."""
    _, response = messages(ApiKey(request.API_KEY))
    answer = response()
    _set_code(answer, code, version)
    for each in _ARRAYS.get(request.API_KEY, ()):
        field = response.FIELDS[each.answered]
        if field.present(version) and request.FIELDS[each.asked].present(version):
            setattr(answer, each.answered, [*getattr(answer, each.answered), *_elements(each, request, answer, code)])
    return answer


def _set_code(answer: Message, code: ErrorCode, version: int | None = None) -> None:
    for name in _CODES:
        field = answer.FIELDS.get(name)
        if field is not None and (version is None or field.present(version)):
            setattr(answer, name, code)
    for name in _OFFSETS:
        if name in answer.FIELDS:
            setattr(answer, name, -1)


def _elements(each: _Each, asked: Message, answer: Message, code: ErrorCode) -> list[Message]:
    element: type[Message] = answer.FIELDS[each.answered].element
    found = []
    for item in getattr(asked, each.asked) or ():
        made: Any = element()
        if not isinstance(item, Message):
            setattr(made, each.key, item)
        else:
            for key in _KEYS:
                if key in element.FIELDS and key in item.FIELDS:
                    setattr(made, key, getattr(item, key) if getattr(item, key) is not None else "")
            if each.key:
                setattr(made, each.key, getattr(item, "partition" if "partition" in item.FIELDS else "name"))
        _set_code(made, code)
        if each.inner is not None:
            setattr(made, each.inner.answered, _elements(each.inner, item, made, code))
        found.append(made)
    return found
