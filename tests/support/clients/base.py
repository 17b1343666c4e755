"""What a test asks of a foreign client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self


class Outgoing(NamedTuple):
    """A record to send; `timestamp` in ms or None for the client's clock."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0
    timestamp: int | None = None


class Seen(NamedTuple):
    """A record as it was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


class Transactions(Protocol):
    """A transactional producer whose transactions have been initialised."""

    def begin(self) -> None: ...
    def send(self, topic: str, records: Sequence[Outgoing]) -> None:
        """Send and wait until all are acknowledged."""

    def send_offsets(self, member: Member, offsets: dict[tuple[str, int], int]) -> None:
        """Add the group's next offsets to the transaction."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Member(Protocol):
    """A member of a consumer group that reads committed records from the earliest on, with commits by hand."""

    def take(self, count: int) -> list[Seen]:
        """The next `count` records; AssertionError if they do not come."""

    def assignment(self) -> set[int]:
        """The partitions it holds now, having polled once more."""

    def commit(self) -> None:
        """Commit what has been taken."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class Client(Protocol):
    """One library, talking to one server."""

    name: str

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def topics(self) -> dict[str, int]:
        """Number of partitions by topic name."""

    def topic_configs(self, topic: str) -> dict[str, str]: ...
    def cluster(self) -> tuple[int, set[int]]:
        """(controller's id, all broker ids)."""

    def groups(self) -> set[str]: ...
    def group_state(self, group: str) -> tuple[str, int]:
        """(state as Kafka spells it, number of members)."""

    def send(
        self,
        topic: str,
        records: Sequence[Outgoing],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Send all, wait for every answer; the offsets in order (-1 where the client knows none)."""

    def transactions(self, transactional_id: str, timeout_ms: int = 60000) -> Transactions: ...
    def read(self, topic: str, partitions: int = 1, *, committed: bool) -> list[Seen]:
        """Everything from the beginning to the end that this isolation level sees, by partition and offset."""

    def member(self, group: str, topic: str, instance: str | None = None) -> Member:
        """A new member; with an instance id a static one (KIP-345)."""

    def committed_offsets(self, group: str, topic: str, partitions: int) -> list[int | None]: ...
    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        """First offset of partition 0 with this timestamp or a later one; None if there is none."""
