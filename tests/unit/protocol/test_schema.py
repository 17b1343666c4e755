import pytest

from oncelog.protocol.apis import ApiKey, messages
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from oncelog.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from oncelog.protocol.messages.heartbeat import HeartbeatRequest
from oncelog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from oncelog.protocol.schema import (
    DecodeError,
    Message,
    UnsupportedVersionError,
    encode_versioned,
    may_be_null_at_all,
    read_version,
)


def test_field_that_a_version_cannot_encode_is_rejected_when_set() -> None:
    message = HeartbeatRequest(group_id="g", group_instance_id="static")
    assert HeartbeatRequest.decode(message.encode(3), 3) == message
    with pytest.raises(UnsupportedVersionError, match="group_instance_id"):
        message.encode(2)


def test_ignorable_field_is_omitted() -> None:
    request = FetchRequest(rack_id="r", session_epoch=-1)
    assert FetchRequest.decode(request.encode(10), 10).rack_id == ""


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_types_of_fields_have_none_if_null_is_legal(key: ApiKey) -> None:
    """A compiled module that reads a field raises TypeError if the value is not of the type."""

    def check(cls: type[Message]) -> None:
        for name, field in cls.FIELDS.items():
            assert ("None" in cls.__annotations__[name]) == may_be_null_at_all(field), f"{cls.__name__}.{name}"
            if field.kind in ("array", "struct") and not isinstance(field.element, str):
                check(field.element)

    for cls in messages(key):
        check(cls)


def test_null_in_a_non_nullable_field_is_rejected() -> None:
    with pytest.raises(UnsupportedVersionError, match="group_id"):
        HeartbeatRequest(group_id=None).encode(0)  # type: ignore[arg-type]
    with pytest.raises(DecodeError):
        HeartbeatRequest.decode(b"\xff\xff" + bytes(6), 0)


def test_nonexistent_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="v5 is not supported; versions are 0 to 4"):
        HeartbeatRequest().encode(5)


def test_bytes_after_the_message_are_an_error() -> None:
    raw = HeartbeatRequest(group_id="g").encode(4)
    with pytest.raises(DecodeError, match="followed by 1 extra bytes"):
        HeartbeatRequest.decode(raw + b"\x00", 4)


def test_records_are_slices_of_the_input() -> None:
    raw = ProduceRequest(
        acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"batch")])]
    ).encode(9)
    view = memoryview(bytearray(raw))
    records = ProduceRequest.decode(view, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is view.obj


def test_records_are_passed_on_without_a_copy() -> None:
    data = memoryview(b"batch")
    response = FetchResponse(responses=[])
    response.responses = []
    chunks = PartitionData(records=data).chunks(12)
    assert any(chunk is data for chunk in chunks)


def test_array_longer_than_its_bytes_is_rejected_before_allocation() -> None:
    raw = b"\x7f\xff\xff\xff" + bytes(10)
    with pytest.raises(DecodeError):
        messages(ApiKey.LIST_GROUPS)[1].decode_from(bytes(2) + raw, 0, 0)


@pytest.mark.parametrize("version", [0, 3, 4])
def test_request_headers_round_trip(version: int) -> None:
    header = RequestHeader(ApiKey.HEARTBEAT, version, 77, "client")
    frame = memoryview(encode_request_header(header) + b"body")
    decoded, pos = decode_request_header(frame)
    assert decoded == header
    assert frame[pos:] == b"body"


def test_header_without_a_client_id() -> None:
    header = RequestHeader(ApiKey.PRODUCE, 13, 1, None)
    assert decode_request_header(memoryview(encode_request_header(header)))[0] == header


@pytest.mark.parametrize("cut", range(10))
def test_truncated_header_is_an_error(cut: int) -> None:
    frame = encode_request_header(RequestHeader(ApiKey.PRODUCE, 13, 1, "id"))
    with pytest.raises(DecodeError):
        decode_request_header(memoryview(frame[:cut]))


def test_api_versions_answers_without_tags() -> None:
    assert encode_response_header(ApiKey.API_VERSIONS, 4, 9) == b"\x00\x00\x00\x09"
    assert encode_response_header(ApiKey.HEARTBEAT, 4, 9) == b"\x00\x00\x00\x09\x00"
    assert decode_response_header(memoryview(b"\x00\x00\x00\x09\x00"), ApiKey.HEARTBEAT, 4) == (9, 5)


def test_internal_records_start_with_their_version() -> None:
    raw = encode_versioned(HeartbeatRequest(group_id="g"), 3)
    assert raw[:2] == b"\x00\x03"
    assert read_version(raw) == 3
    with pytest.raises(DecodeError):
        read_version(b"\x00")


def test_error_codes_have_names_texts_and_retriability() -> None:
    assert ErrorCode.of(48) is ErrorCode.INVALID_TXN_STATE
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert ErrorCode.NOT_COORDINATOR.retriable
    assert not ErrorCode.PRODUCER_FENCED.retriable
    assert str(ProtocolError(ErrorCode.PRODUCER_FENCED)) == ErrorCode.PRODUCER_FENCED.text
