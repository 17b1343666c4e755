"""The offsets that a group commits, and the identity of the member that commits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from oncelog import errors
from oncelog.client.records import check_offsets
from oncelog.client.types import TopicPartition

NO_GENERATION = -1


class OffsetAndMetadata(int):
    """The offset of the next record. It is an int, because most callers need no more of a committed offset.

    `leader_epoch` is the epoch of the record before it, or -1. With it, a consumer detects that the log was cut
    (KIP-320). `metadata` is a text that the committing client stored with the offset.
    """

    leader_epoch: int
    metadata: str

    def __new__(cls, offset: int, leader_epoch: int = -1, metadata: str = "") -> OffsetAndMetadata:  # noqa: D102
        made = super().__new__(cls, offset)
        made.leader_epoch, made.metadata = leader_epoch, metadata
        return made

    @classmethod
    def of(cls, offset: int) -> OffsetAndMetadata:
        """Return `offset` as an OffsetAndMetadata, without epoch and metadata if it has none."""
        return offset if isinstance(offset, cls) else cls(offset)


class GroupMetadata(NamedTuple):
    """The identity of a member that commits. A coordinator fences zombies by generation and member id (KIP-447).

    A bare group id has neither.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


@runtime_checkable
class Positioned(Protocol):
    """What `send_offsets` needs of a consumer."""

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of the group's member."""

    def offsets_for_transaction(self) -> dict[TopicPartition, int]:
        """Return the consumed offsets, which a transaction commits from now on."""


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
            "send_offsets takes the consumer, or its group_metadata() or group id and then the offsets; "
            f"not {type(source).__name__}"
        )
    else:
        group = source.group_metadata()
        if offsets is None:
            offsets = source.offsets_for_transaction()
    if offsets is None:
        raise errors.UsageError("send_offsets needs the offsets unless it is given a consumer")
    known = {tp: OffsetAndMetadata.of(offset) for tp, offset in check_offsets(offsets).items()}
    return group, {tp: (int(offset), offset.leader_epoch, offset.metadata) for tp, offset in known.items()}
