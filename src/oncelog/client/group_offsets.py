"""The offsets that a group commits, and the identity of the member that commits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from oncelog import errors
from oncelog.client.notebooks import in_notebooks
from oncelog.client.records import check_offsets
from oncelog.protocol.topics import TopicPartition

NO_GENERATION = -1


class OffsetAndMetadata(int):
    """A committed offset: the offset of the next record to read. It is an int with two attributes.

    `leader_epoch` is the leader epoch of the record before it, or -1 if unknown. With it, a consumer detects that the
    log was truncated (KIP-320). `metadata` is a string that the committing client stored with the offset.

    It is true even if the offset is 0, so `if found:` means that there is an offset. `str()` and formatting give the
    number alone, `repr()` all three.
    """

    leader_epoch: int
    metadata: str

    def __new__(cls, offset: int, leader_epoch: int = -1, metadata: str = "") -> OffsetAndMetadata:  # noqa: D102
        made = super().__new__(cls, offset)
        made.leader_epoch, made.metadata = leader_epoch, metadata
        return made

    def __repr__(self) -> str:
        """Return the call that makes it, without the defaults."""
        epoch = f", leader_epoch={self.leader_epoch}" if self.leader_epoch != -1 else ""
        return f"OffsetAndMetadata({int(self)}{epoch}{f', metadata={self.metadata!r}' if self.metadata else ''})"

    def __str__(self) -> str:
        """Return the number, because programs format offsets."""
        return int.__repr__(self)

    def __bool__(self) -> bool:
        """Return True, as the tuples of other clients do: the first offset is an offset, and may have metadata."""
        return True

    @classmethod
    def of(cls, offset: int) -> OffsetAndMetadata:
        """Return `offset` as an OffsetAndMetadata, without epoch and metadata if it has none."""
        return offset if isinstance(offset, cls) else cls(offset)


@in_notebooks()
class GroupMetadata(NamedTuple):
    """The identity with which offsets are committed: a group and, if known, the member and its generation.

    With generation and member id, the coordinator rejects commits of members that have left the group (KIP-447). With
    a group id alone, it cannot.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


@runtime_checkable
class Positioned(Protocol):
    """The methods of a consumer that `send_offsets` needs."""

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of the group's member."""

    def offsets_for_transaction(self) -> dict[TopicPartition, int]:
        """Return the consumed offsets. From now on, transactions commit them."""


def group_and_offsets(
    source: Positioned | GroupMetadata | str, offsets: Mapping[TopicPartition, int] | None
) -> tuple[GroupMetadata, dict[TopicPartition, tuple[int, int, str]]]:
    """Convert the arguments of `send_offsets` to (group, partition -> (offset, leader epoch, metadata)).

    Raises UsageError and AbortableError.
    """
    if isinstance(source, str):
        group = GroupMetadata(source)
    elif isinstance(source, GroupMetadata):
        group = source
    elif not isinstance(source, Positioned):
        raise errors.UsageError(
            "send_offsets takes a consumer, or group_metadata() or a group id together with offsets, not "
            f"{type(source).__name__}"
        )
    else:
        group = source.group_metadata()
        if offsets is None:
            offsets = source.offsets_for_transaction()
    if offsets is None:
        raise errors.UsageError("send_offsets needs offsets, because its first argument is not a consumer")
    known = {tp: OffsetAndMetadata.of(offset) for tp, offset in check_offsets(offsets).items()}
    return group, {tp: (int(offset), offset.leader_epoch, offset.metadata) for tp, offset in known.items()}
