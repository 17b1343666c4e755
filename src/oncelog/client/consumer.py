"""The blocking consumer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog.client import offsets as offset_calls
from oncelog.client.batch import TopicPartition
from oncelog.client.blocking import LoopThread
from oncelog.client.fetcher import ConsumerRecord
from oncelog.client.group import GroupMetadata
from oncelog.client.options import consumer_options
from oncelog.client.reader import Reader
from oncelog.client.walk import Walk

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer", "ConsumerRecord", "GroupMetadata"]

T = TypeVar("T")
Listener = Callable[[list[TopicPartition]], object]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


class Consumer:
    """Reads records, as a member of a group (`subscribe`) or by itself (`assign`). Not for several threads at once.

    `Consumer("localhost:9092", group_id="etl", isolation_level="read_committed")`: options carry Kafka's names with
    `_` for `.`; a mapping with the dotted names may be given as `config`. Partitions are (topic, partition) pairs,
    offsets that are committed or returned as positions those of the next record. Heartbeats go out in the background.
    Use as a context manager, or `close` it. Time-outs are in seconds; errors: `oncelog.errors`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if bootstrap_servers is not None:
            options["bootstrap_servers"] = bootstrap_servers
        self.options = consumer_options(config, options)
        self._thread = LoopThread.shared()
        self._reader = Reader(self.options, self._thread.loop)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(work)

    def close(self, timeout: float = 30.0) -> None:
        """Commit if enable_auto_commit, leave the group, hang up."""
        self._run(self._reader.close(timeout * 1000))

    # -- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
    ) -> None:
        """Read topics (or those whose names match a pattern that begins with ^) as a member of the group.

        The listeners are called inside `poll`, from the client's thread, with the partitions that come and go: they
        must not call this consumer.
        """
        self._run(_done(self._reader.subscribe, topics, on_assigned, on_revoked))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's coordination."""
        self._run(_done(self._reader.assign, list(partitions)))

    def unsubscribe(self) -> None:
        """Leave the group, read nothing."""
        self._run(self._reader.unsubscribe())

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now; with a group, those of the last `poll`."""
        return sorted(self._reader.states)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Get nothing of these partitions until `resume`."""
        for tp in partitions:
            self._reader.state(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Get records of these partitions again."""
        for tp in partitions:
            self._reader.state(tp).paused = False

    # -- reading --------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records as soon as there are some, at most max_poll_records; an empty list after `timeout` seconds.

        What was returned counts as consumed: `commit`, `position` and auto-commit are behind it.
        """
        return self._run(self._reader.poll(timeout * 1000, max_records))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record by record, without end; the position is behind the one at hand, what was not reached comes again."""
        while not self._reader.closed:
            records = self.poll(1.0)
            if not records:
                continue
            walk = Walk(self._reader, records)
            try:
                for record in records:
                    walk.reached(record)
                    yield record
            finally:
                self._run(_done(walk.stop))

    def tables(self, *, timeout: float | None = None, headers: bool = False) -> Iterator[pa.Table]:
        """Tables of what has arrived: key, value, topic, partition, offset, timestamp, timestampType (, headers).

        Each is all that was fetched by then, of one or more partitions; no Python object is made for a row. The
        position is behind the table at hand. Ends when nothing came for `timeout` seconds (None: never).
        """
        from oncelog.client.tables import decode

        while not self._reader.closed:
            raw = self._run(self._reader.poll_raw(1e9 if timeout is None else timeout * 1000))
            if not raw:
                return
            table = decode(self._reader, raw, include_headers=headers)
            if table.num_rows:
                yield table

    # -- positions ------------------------------------------------------------------------------------------------

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Read from an offset on."""
        self._run(_done(self._reader.state((topic, partition)).seek, offset))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the first offset on; default: all assigned partitions."""
        self._seek_to(partitions, offset_calls.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read what comes after the end (with read_committed: the last stable offset)."""
        self._seek_to(partitions, offset_calls.LATEST)

    def seek_to_time(self, timestamp: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Read from the first record on whose timestamp (ms since the epoch) is not before this; the end if there is
        none.
        """
        self._seek_to(partitions, timestamp)

    def _seek_to(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        for tp in self.assignment() if partitions is None else partitions:
            self._run(_done(self._reader.state(tp).seek_to_time, timestamp))

    def position(self, topic: str, partition: int, timeout: float | None = None) -> int:
        """The offset behind what was consumed."""
        return self._run(self._reader.position((topic, partition), _ms(timeout)))

    def positions(self) -> dict[TopicPartition, int]:
        """The same for every assigned partition of which anything is known: what `commit()` commits."""
        return self._reader.consumed()

    def hand_over(self) -> dict[TopicPartition, int]:
        """The same, for `Producer.send_offsets`; UsageError with auto-commit, AbortableError after a rebalance."""
        return self._reader.hand_over()

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, timeout: float | None = None) -> None:
        """Commit what was consumed, or these offsets, for the group; GroupError when the membership has ended."""
        self._run(self._reader.commit(offsets, _ms(timeout)))

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, of some partitions or of all that it has any for."""
        group = self._reader.group_metadata().group_id
        return self._run(
            offset_calls.fetch_committed(self._reader.cluster, group, partitions, timeout_ms=_ms(timeout))
        )

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where reading ends now: the high watermark, or with read_committed the last stable offset."""
        return self._run(self._offsets(partitions, offset_calls.LATEST))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        return self._run(self._offsets(partitions, offset_calls.EARLIEST))

    async def _offsets(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        found = await offset_calls.list_offsets(
            self._reader.cluster, dict.fromkeys(partitions, timestamp), isolation_level=self._reader.isolation
        )
        return {tp: item.offset for tp, item in found.items()}

    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between position and end of every assigned partition, asked for now (markers count as well)."""
        ends = self.end_offsets(self.assignment())
        return {tp: max(0, end - self.position(*tp)) for tp, end in ends.items()}

    def group_metadata(self) -> GroupMetadata:
        """What `Producer.send_offsets` needs to refuse zombies."""
        return self._reader.group_metadata()


async def _done(function: Callable[..., T], *args: Any) -> T:
    """Run a plain function on the loop, where the reader's state belongs."""
    return function(*args)
