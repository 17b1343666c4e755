"""The broker answers requests that fail in an unusual way, and the connection's other answers are sent."""

from __future__ import annotations

from uuid import UUID

import pytest

from oncelog.log.validate import MOST_NAMED
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from oncelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from oncelog.protocol.records import Record, build_batch
from support.servers import Server
from support.wire import Wire, code, retried

LONGEST = 32_767
"""Longest string in Kafka's protocol, in bytes."""


def joining(group: str, member_id: str = "", session_timeout_ms: int = 10_000, **fields: str) -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"x")]
    return JoinGroupRequest(
        group_id=group,
        member_id=member_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=protocols,
        **fields,
    )


@pytest.mark.parametrize("version", [2, 4, 5, 6, 9])
def test_member_id_too_long_for_any_response(server: Server, name: str, version: int) -> None:
    """A member id is the client id and 37 more bytes."""
    with Wire(server.bootstrap, client_id="c" * (LONGEST - 7)) as wire:
        wire.find_coordinator(name, 0)
        answer = retried(lambda: wire.call(joining(name), version))
        assert answer.error_code == code("UNKNOWN_SERVER_ERROR")
        assert not wire.call(ApiVersionsRequest(), 0).error_code


def test_static_member_id_too_long_for_any_response(server: Server, name: str) -> None:
    with Wire(server.bootstrap) as wire:
        wire.find_coordinator(name, 0)
        answer = retried(lambda: wire.call(joining(name, group_instance_id="i" * (LONGEST - 7)), 5))
        assert answer.error_code == code("UNKNOWN_SERVER_ERROR")
        assert not wire.call(ApiVersionsRequest(), 0).error_code


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("known", [False, True])
def test_metadata_by_topic_id_before_version_12(wire: Wire, name: str, version: int, known: bool) -> None:
    topic_id = wire.create_topic(name) if known else UUID(int=1 << 77)
    for asked in (None, name):
        request = MetadataRequest(topics=[MetadataRequestTopic(name=asked, topic_id=topic_id)])
        (topic,) = wire.call(request, version).topics
        assert (topic.error_code, topic.name, topic.topic_id) == (code("INVALID_REQUEST"), asked or "", topic_id)


def test_small_batch_with_very_many_invalid_records(wire: Wire, server: Server, name: str) -> None:
    """DIFFERS: oncelog names at most 10,000 invalid records. Kafka names all, in an answer of about 40 MB."""
    wire.create_topic(name, cleanup_policy="compact")
    count = 400_000
    records = build_batch([Record(index, 1_000, None, b"") for index in range(count)], codec=4)
    answer = wire.produce(name, records)
    assert answer.error_code == code("INVALID_RECORD")
    assert len(answer.record_errors) == (MOST_NAMED if server.name == "oncelog" else count)
    assert not wire.call(ApiVersionsRequest(), 0).error_code
