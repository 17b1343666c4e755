"""Check batches before they are appended (Kafka's ``LogValidator`` and ``analyzeAndValidateRecords``).

By default, a batch is checked by its CRC and its header, which has the largest timestamp. Each record is checked if the
topic is compacted, if ``message.timestamp.before.max.ms`` or ``record.validation=full`` is set, or if the header shows
an invalid timestamp. The error then names the invalid records (KIP-467).
"""

from __future__ import annotations

from oncelog.log.config import NO_LIMIT, LogConfig
from oncelog.log.producer_state import Origin
from oncelog.protocol.compression import Codec, TooMuchDataError
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import (
    ATTRIBUTES_LOW,
    CODEC_MASK,
    CREATE_TIME,
    DEFAULT_DECOMPRESSED_LIMIT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    check_batch,
    iter_batches,
    iter_heads,
    parse_header,
    recompress,
    set_max_timestamp,
)

SMALL_BYTES = 16 * 1024
"""An uncompressed batch up to this size is checked record by record within a few ms."""
LARGE_BYTES = 2 * 1024 * 1024
"""Above this size, the checksum alone takes long."""
MOST_NAMED = 10_000
"""Invalid records of a batch that an error names. Kafka names all of them."""


class ValidBatches:
    """Batches that may be appended: their headers, and their concatenated bytes."""

    __slots__ = ("headers", "view")

    def __init__(self, headers: list[BatchHeader], view: memoryview) -> None:
        self.headers = headers
        self.view = view


class InvalidRecordsError(ProtocolError):
    """A batch is rejected because of some of its records. ``records`` has their indexes and reasons (KIP-467).

    At most `MOST_NAMED` records are named: a batch of 300 bytes may have a million invalid records.
    """

    def __init__(self, code: ErrorCode, records: list[tuple[int, str]], invalid: int, count: int) -> None:
        index, reason = records[0]
        super().__init__(
            code, f"the batch is rejected: {invalid} of {count} records are invalid; record {index}: {reason}"
        )
        self.records = records


def validate(records: memoryview, origin: Origin, config: LogConfig, now_ms: int) -> ValidBatches:
    """Check the batches of one append. If the topic uses LogAppendTime, set their timestamps.

    Timestamps are set in place. If the topic stores batches with another codec, the result is a copy.
    Raises INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.
    """
    headers: list[BatchHeader] = []
    for header, view in iter_batches(records):
        if origin == Origin.CLIENT and headers:  # `may_take_long` has only seen the first batch
            raise ProtocolError(
                ErrorCode.INVALID_RECORD, "a Produce request may have only one record batch per partition"
            )
        _check_size(header, config)
        if origin == Origin.CLIENT:
            _check_client_batch(header, view, config, now_ms)
        headers.append(header)
    if not headers:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "the request has no record batch to append")
    if origin == Origin.CLIENT and config.compression is not None and headers[0].codec != config.compression:
        records = memoryview(_recompress(records, config))
        headers = [parse_header(records)]
        _check_size(headers[0], config)
    if config.timestamp_type == LOG_APPEND_TIME:
        headers = _stamp(records, headers, LOG_APPEND_TIME, now_ms)
    elif headers[0].timestamp_type:
        headers = _stamp(records, headers, CREATE_TIME, headers[0].max_timestamp)
    return ValidBatches(headers, records)


def _check_size(header: BatchHeader, config: LogConfig) -> None:
    if header.size > config.max_message_bytes:
        raise ProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {header.size} bytes, more than max.message.bytes ({config.max_message_bytes})",
        )


def may_take_long(records: memoryview, config: LogConfig, now_ms: int) -> bool:
    """Return whether `validate` may take so long for a client's batch that a worker thread should run it.

    A small compressed batch may contain a million records, and its header may claim a wrong number.
    """
    if len(records) > LARGE_BYTES:
        return True
    codec = records[ATTRIBUTES_LOW] & CODEC_MASK if len(records) > HEADER_SIZE else 0
    if not codec and len(records) <= SMALL_BYTES:
        return False
    try:
        header = parse_header(records)
    except ProtocolError:  # `validate` raises the error without delay
        return False
    if config.compression is not None and codec != config.compression:
        return True
    return _are_records_checked(header, config, now_ms)


def _check_client_batch(header: BatchHeader, view: memoryview, config: LogConfig, now_ms: int) -> None:
    check_batch(header, view)
    if header.is_control:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.base_offset != 0:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD, f"the base offset of a produced batch must be 0, not {header.base_offset}"
        )
    if _are_records_checked(header, config, now_ms):
        _check_records(header, view, config, now_ms)


def _are_records_checked(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    return (
        config.compact
        or config.full_record_validation
        or config.timestamp_before_max_ms < NO_LIMIT
        or _wrong_time(header.max_timestamp, header, config, now_ms) is not None
    )


def _wrong_time(timestamp: int, header: BatchHeader, config: LogConfig, now_ms: int) -> str | None:
    """Return why a record's timestamp is invalid, or None (``LogValidator.validateTimestamp``)."""
    if config.timestamp_type == CREATE_TIME and timestamp != NO_TIMESTAMP:
        if timestamp - now_ms > config.timestamp_after_max_ms or now_ms - timestamp > config.timestamp_before_max_ms:
            return (
                f"timestamp {timestamp} is out of range: at most {config.timestamp_before_max_ms} ms before and "
                f"{config.timestamp_after_max_ms} ms after the broker's clock ({now_ms})"
            )
    elif header.timestamp_type == LOG_APPEND_TIME:
        return "a producer may not set the timestamp type LogAppendTime"
    return None


def _check_records(header: BatchHeader, view: memoryview, config: LogConfig, now_ms: int) -> None:
    """Raise InvalidRecordsError with each invalid record. As in Kafka, one INVALID_TIMESTAMP sets the code."""
    code = ErrorCode.INVALID_RECORD
    found: list[tuple[int, str]] = []
    invalid = 0
    for index, (offset, timestamp, has_key) in enumerate(iter_heads(view)):
        reason = _contradiction(index, offset, timestamp, has_key, header, config)
        if reason is None and (reason := _wrong_time(timestamp, header, config, now_ms)) is not None:
            code = ErrorCode.INVALID_TIMESTAMP
        if reason is not None:
            invalid += 1
            if invalid <= MOST_NAMED:
                found.append((index, reason))
    if not found and (reason := _wrong_time(header.max_timestamp, header, config, now_ms)) is not None:
        raise ProtocolError(ErrorCode.INVALID_TIMESTAMP, reason)  # no record has the timestamp in the header
    if found:
        raise InvalidRecordsError(code, found, invalid, header.count)


def _contradiction(
    index: int, offset: int, timestamp: int, has_key: bool, header: BatchHeader, config: LogConfig
) -> str | None:
    if offset != index:
        return f"its offset delta is {offset}, not {index}"
    if config.compact and not has_key:
        return "it has no key, but the topic is compacted"
    if config.timestamp_type == CREATE_TIME and timestamp > header.max_timestamp:
        return f"its timestamp {timestamp} is larger than the max timestamp of its batch, {header.max_timestamp}"
    return None


def _recompress(view: memoryview, config: LogConfig) -> bytearray:
    """Return the batch with the topic's codec. Stop decompressing if the result must become too large."""
    assert config.compression is not None
    limit = DEFAULT_DECOMPRESSED_LIMIT
    if config.compression == Codec.NONE:
        limit = min(limit, config.max_message_bytes)
    try:
        return recompress(view, config.compression, level=config.compression_level, limit=limit)
    except TooMuchDataError as error:
        message = f"cannot recompress the record batch with compression.type={config.compression.name.lower()}: {error}"
        raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE, message) from error


def _stamp(view: memoryview, headers: list[BatchHeader], timestamp_type: int, timestamp: int) -> list[BatchHeader]:
    position = 0
    stamped = []
    for header in headers:
        set_max_timestamp(view, position, timestamp_type, timestamp)
        stamped.append(parse_header(view, position))
        position += header.size
    return stamped
