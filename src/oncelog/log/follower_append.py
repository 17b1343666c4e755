"""Append batches from a leader to a follower's log as they are, and delete what the leader does not have.

The leader has checked the batches, so only damage is rejected here: a wrong CRC, an offset that overlaps the log, and a
leader epoch that is lower than an earlier one or higher than the leader's. The producer state and the transaction index
are updated batch by batch, as in recovery, so they are equal to the leader's. Source: Kafka's
`UnifiedLog.appendAsFollower`, KAFKA-18723.
"""

from __future__ import annotations

from typing import Protocol

from oncelog.log.config import LogConfig
from oncelog.log.validate import ValidBatches
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import BatchHeader, check_crc, decode_control, is_partial, iter_batches, parse_header


class FollowerLog(Protocol):
    """What the checks need to know of a log."""

    config: LogConfig
    log_end_offset: int

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which the offset was written, or -1."""


def check_batches(records: memoryview, log: FollowerLog, base: int | None, leader_epoch: int) -> list[ValidBatches]:
    """Check all batches, and return them in groups that each fit into one segment.

    They must follow the log's last batch or, if `base` is given, the batch before that offset. A batch that continues
    beyond the end of `records` is dropped. Raises CORRUPT_MESSAGE, INVALID_RECORD.
    """
    groups: list[ValidBatches] = []
    headers: list[BatchHeader] = []
    start = position = 0
    expected = log.log_end_offset if base is None else base
    epoch = log.epoch_at(expected - 1)
    for header, view in iter_batches(records, partial_ok=True):
        check_crc(header, view)
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise _rejected(header, f"the next offset is {expected}")
        if not epoch <= header.partition_leader_epoch <= leader_epoch:
            raise _rejected(header, f"its leader epoch must be in {epoch}..{leader_epoch}")
        if header.is_control and header.count > 0:
            decode_control(view)  # raises before anything is written
        if headers and position + header.size - start > log.config.segment_bytes:
            groups.append(ValidBatches(headers, records[start:position]))
            headers, start = [], position
        headers.append(header)
        position += header.size
        expected, epoch = header.next_offset, header.partition_leader_epoch
    if headers:
        groups.append(ValidBatches(headers, records[start:position]))
    return groups


def batch_across(records: memoryview, offset: int) -> int | None:
    """Return the base offset of the first batch if `offset` is inside it, otherwise None.

    The leader's log start offset may be inside a batch. A follower's log begins there after a full truncation. The
    epoch of that batch starts there as well, so a follower may keep a record of another leader in front of it.
    """
    if is_partial(records, 0):
        return None
    first = parse_header(records)
    return first.base_offset if first.base_offset < offset <= first.last_offset else None


def _rejected(header: BatchHeader, reason: str) -> ProtocolError:
    return ProtocolError(
        ErrorCode.CORRUPT_MESSAGE,
        f"a batch from the leader has offset {header.base_offset} and leader epoch {header.partition_leader_epoch}, "
        f"but {reason}",
    )
