"""The verification of a transaction: its coordinator must confirm it before the first batch is appended (KIP-890).

Source: Kafka's ``VerificationStateEntry``.
"""

from __future__ import annotations

from oncelog.protocol.records import MAX_SEQUENCE


def is_before(sequence: int, expected: int) -> bool:
    """Return whether ``sequence`` is before ``expected`` on the circle of 2^31 sequences."""
    return (sequence - expected) & MAX_SEQUENCE > MAX_SEQUENCE // 2


class Verification:
    """A transaction that its coordinator is verifying. Appends with an older guard fail (KIP-890)."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "strict", "timestamp")

    def __init__(self, guard: int, epoch: int, sequence: int, strict: bool, timestamp: int) -> None:
        self.guard = guard
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.strict = strict
        self.timestamp = timestamp

    def note(self, epoch: int, sequence: int) -> None:
        """Add a batch that waits for the same verification."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and is_before(sequence, self.lowest_sequence):
            self.lowest_sequence = sequence
