"""Who commits offsets, and which: what `send_offsets` is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from oncelog import errors
from oncelog.client.committed import OffsetAndMetadata
from oncelog.client.records import check_offsets
from oncelog.client.types import TopicPartition

NO_GENERATION = -1


class GroupMetadata(NamedTuple):
    """Who commits: with generation and member, zombies are refused (KIP-447); a bare group id has neither."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None


@runtime_checkable
class Positioned(Protocol):
    """A consumer, blocking or not, as far as its offsets go."""

    def group_metadata(self) -> GroupMetadata:
        """Who commits."""

    def hand_over(self) -> dict[TopicPartition, int]:
        """Offsets behind what was consumed, which a transaction commits from now on."""


def group_and_offsets(
    source: Positioned | GroupMetadata | str, offsets: Mapping[TopicPartition, int] | None
) -> tuple[GroupMetadata, dict[TopicPartition, tuple[int, int, str]]]:
    """What `send_offsets` was given, as (group, partition -> (offset, leader epoch, metadata)).

    UsageError, AbortableError.
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
            offsets = source.hand_over()
    if offsets is None:
        raise errors.UsageError("send_offsets needs the offsets unless it is given a consumer")
    known = {tp: OffsetAndMetadata.of(offset) for tp, offset in check_offsets(offsets).items()}
    return group, {tp: (int(offset), offset.leader_epoch, offset.metadata) for tp, offset in known.items()}
