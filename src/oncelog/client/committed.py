"""An offset as a group keeps it."""

from __future__ import annotations


class OffsetAndMetadata(int):
    """The offset of the next record, which is all that most want of it, hence a number.

    `leader_epoch` is that of the record before it, by which a consumer finds out that the log was cut (KIP-320), -1 if
    unknown; `metadata` a text that whoever committed left with it.
    """

    leader_epoch: int
    metadata: str

    def __new__(cls, offset: int, leader_epoch: int = -1, metadata: str = "") -> OffsetAndMetadata:  # noqa: D102
        made = super().__new__(cls, offset)
        made.leader_epoch, made.metadata = leader_epoch, metadata
        return made

    @classmethod
    def of(cls, offset: int) -> OffsetAndMetadata:
        """The same, whatever kind of number it is."""
        return offset if isinstance(offset, cls) else cls(offset)
