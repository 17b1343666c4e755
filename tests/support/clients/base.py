"""The interface of foreign clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self


class Outgoing(NamedTuple):
    """A record to send. `timestamp` is in ms, or None for the client's clock."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0
    timestamp: int | None = None


class Seen(NamedTuple):
    """A record that was read."""

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
        """Send, and wait until all are acknowledged."""

    def send_offsets(self, member: Member, offsets: dict[tuple[str, int], int]) -> None:
        """Add the group's next offsets to the transaction."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Member(Protocol):
    """A member of a consumer group that reads committed records from the earliest on and commits manually."""

    def take(self, count: int) -> list[Seen]:
        """Return the next `count` records. Raise AssertionError if they do not arrive."""

    def assignment(self) -> set[int]:
        """Poll once, and return the partitions that the member holds."""

    def commit(self) -> None:
        """Commit the returned records."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class Client(Protocol):
    """One library, connected to one server."""

    name: str

    def create_topic(self, topic: str, partitions: int = 1, **configs: str) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def topics(self) -> dict[str, int]:
        """Return the number of partitions by topic name."""

    def topic_configs(self, topic: str) -> dict[str, str]: ...
    def cluster(self) -> tuple[int, set[int]]:
        """Return (controller's id, all broker ids)."""

    def groups(self) -> set[str]: ...
    def group_state(self, group: str) -> tuple[str, int]:
        """Return (state in Kafka's spelling, number of members)."""

    def send(
        self,
        topic: str,
        records: Sequence[Outgoing],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        """Send all records, and wait for every response.

        Return the offsets in order (-1 if the client does not report one).
        """

    def transactions(self, transactional_id: str, timeout_ms: int = 60000) -> Transactions: ...
    def read(self, topic: str, partitions: int = 1, *, committed: bool) -> list[Seen]:
        """Return everything that this isolation level shows, by partition and offset."""

    def member(self, group: str, topic: str, instance: str | None = None) -> Member:
        """Return a new member. With an instance id, it is static (KIP-345)."""

    def committed_offsets(self, group: str, topic: str, partitions: int) -> list[int | None]: ...
    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        """Return the first offset of partition 0 with this timestamp or a later one, or None."""
