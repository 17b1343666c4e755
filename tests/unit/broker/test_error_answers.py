"""If a handler fails, the broker answers in the form of the API and keeps the connection open."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest

from oncelog.broker.broker import Broker
from oncelog.broker.requests.apis import SERVED
from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.error_responses import error_answer
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from oncelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import Message
from support.broker_fixtures import BrokerStorage

CODE = ErrorCode.UNKNOWN_SERVER_ERROR
WITHOUT = {(ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)}
"""These answers have no error field: Kafka's are empty."""


def filled(cls: type[Message]) -> Message:
    """Return a message whose arrays have two elements each."""
    made = cls()
    for name, field in cls.FIELDS.items():
        if field.kind != "array":
            continue
        if not isinstance(field.element, str):
            setattr(made, name, [filled(field.element), filled(field.element)])
        else:
            setattr(made, name, ["a", "b"] if field.element == "string" else [3, 4])
    return made


def codes(answer: Message) -> list[int]:
    """Return every error code in an answer."""
    found = []
    for name, field in answer.FIELDS.items():
        value = getattr(answer, name)
        if name.endswith("error_code") and name != "topic_config_error_code":
            found.append(value)
        elif field.kind == "array" and not isinstance(field.element, str):
            found += [code for item in value or () for code in codes(item)]
    return found


CASES = [
    (key, version) for key, served in SERVED.items() for version in range(served.min_version, served.max_version + 1)
]


@pytest.mark.parametrize(("key", "version"), CASES, ids=[f"{ApiKey(key).name}-{version}" for key, version in CASES])
def test_every_api_has_an_error_response(key: int, version: int) -> None:
    request_class, response_class = messages(ApiKey(key))
    answer = error_answer(filled(request_class), version, CODE)
    decoded = response_class.decode(answer.encode(version), version)
    found = codes(decoded)
    assert CODE in found or (key, version) in WITHOUT
    assert error_answer(request_class(), version, CODE).encode(version), "an empty request has an answer, too"


def test_partitions_are_named_as_in_the_request() -> None:
    data = [PartitionProduceData(index=index, records=b"") for index in (3, 5)]
    request = ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)])
    answer: Any = error_answer(request, 9, CODE)
    (topic,) = answer.responses
    assert topic.name == "t"
    assert [(each.index, each.error_code) for each in topic.partition_responses] == [(3, CODE), (5, CODE)]


class Failing:
    """A handler of Heartbeat that fails in each way in turn, then works."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: HeartbeatRequest) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("a bug")
        if self.calls == 2:
            return self.later()
        if self.calls == 3:
            return HeartbeatResponse(error_code=1 << 20)  # cannot be encoded
        if self.calls == 4:
            raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "not today")
        return HeartbeatResponse()

    async def later(self) -> HeartbeatResponse:
        await asyncio.sleep(0)
        raise LookupError("another bug")


def test_failing_handler_affects_no_other_answer(
    storage: BrokerStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def life(broker: Broker) -> None:
        monkeypatch.setattr(broker.groups, "heartbeat", Failing())
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        for number in range(5):
            header = RequestHeader(HeartbeatRequest.API_KEY, 4, number, "test")
            frame = encode_request_header(header) + HeartbeatRequest(group_id="g").encode(4)
            writer.write(struct.pack(">i", len(frame)) + frame)
        found = []
        for number in range(5):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            view = memoryview(await reader.readexactly(size))
            correlation_id, position = decode_response_header(view, HeartbeatRequest.API_KEY, 4)
            assert correlation_id == number
            found.append(HeartbeatResponse.decode(view[position:], 4).error_code)
        assert found == [CODE, CODE, CODE, ErrorCode.REQUEST_TIMED_OUT, 0]
        writer.close()

    with caplog.at_level(logging.ERROR):
        storage.run_broker(life)
    traced = [record for record in caplog.records if record.exc_info]
    assert len(traced) == 3, "each failure is logged once"
    assert "HEARTBEAT v4 of client 'test' failed" in traced[0].getMessage()
