"""Check the batches of a leader before a follower's log appends them as they are.

The leader has checked their content, so only damage is rejected: a wrong CRC, an offset that overlaps the log, and a
leader epoch that is lower than an earlier one or higher than the leader's. Source: Kafka's
`UnifiedLog.appendAsFollower`, KAFKA-18723.
"""

from __future__ import annotations

from oncelog.log.steps import BATCHES_A_STEP, Pace, Steps
from oncelog.log.validate import ValidBatches
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.records import BatchHeader, check_crc, decode_control, is_partial, iter_batches, parse_header

BYTES_PER_BATCH = 1024
"""The bytes that cost as much as a batch, for `Pace`."""


def checking(
    records: memoryview, end_offset: int, latest_epoch: int, leader_epoch: int, segment_bytes: int, pace: Pace
) -> Steps[list[ValidBatches]]:
    """Check all batches, with pauses. Return them in groups that each fit into one segment and one step.

    They must follow `end_offset`, before which the log has the epoch `latest_epoch`, or -1. A batch that continues
    beyond the end of `records` is dropped. Raises CORRUPT_MESSAGE, INVALID_RECORD.
    """
    groups: list[ValidBatches] = []
    headers: list[BatchHeader] = []
    start = position = 0
    expected, epoch = end_offset, latest_epoch
    for header, view in iter_batches(records, partial_ok=True):
        check_crc(header, view)
        if header.base_offset < expected or header.last_offset_delta < 0:
            raise _rejected(header, f"the next offset is {expected}")
        if not epoch <= header.partition_leader_epoch <= leader_epoch:
            raise _rejected(header, f"its leader epoch must be in {epoch}..{leader_epoch}")
        if header.is_control and header.count > 0:
            decode_control(view)  # raises before anything is written
        if pace.is_due(cost(1, header.size)):
            yield
        if headers and (position + header.size - start > segment_bytes or len(headers) == BATCHES_A_STEP):
            groups.append(ValidBatches(headers, records[start:position]))
            headers, start = [], position
        headers.append(header)
        position += header.size
        expected, epoch = header.next_offset, header.partition_leader_epoch
    if headers:
        groups.append(ValidBatches(headers, records[start:position]))
    return groups


def cost(batches: int, size: int) -> int:
    """Return the cost of checking or writing batches of ``size`` bytes, for `Pace`."""
    return batches + size // BYTES_PER_BATCH


def batch_across(records: memoryview, offset: int) -> int | None:
    """Return the base offset of the first batch if `offset` is inside it, otherwise None.

    The leader's log start offset may be inside a batch. A follower's log begins there after a full truncation. If the
    leader does not know where the epoch of that batch began, a follower may keep another leader's record in front of
    it.
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
