"""A leadership: one broker leads one partition for one term, which is one leader epoch. No I/O, no clock.

A `Leadership` knows the log end offset of each follower. From these offsets and the in-sync replicas (ISR), it computes
the high watermark, and proposes changes of the ISR. Everything that waits for the high watermark belongs to the term:
each `Wait` ends with exactly one `Outcome`, and the end of the term ends them all.

A proposal is written by compare-and-set on the partition's state node. Until its outcome is known, the high watermark
counts the members of both the old and the new ISR (the maximal ISR). Sources: KIP-101, KIP-497, KIP-903, KIP-966;
Kafka's `Partition`, `Replica`; KAFKA-7128, KAFKA-13091, KAFKA-19996.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from oncelog.cluster.partition_state import PartitionState, eligible
from oncelog.cluster.waits import Waits
from oncelog.protocol.errors import ErrorCode, ProtocolError

UNKNOWN_OFFSET = -1
NEVER = -(2**62)
"""A time before all others."""


class Follower:
    """What the leader knows about one follower in this term."""

    __slots__ = ("broker", "broker_epoch", "caught_up_ms", "end_at_fetch", "fetched_ms", "log_end", "log_start")

    def __init__(self, broker: int, caught_up_ms: int) -> None:
        self.broker = broker
        self.broker_epoch = UNKNOWN_OFFSET
        self.log_end = UNKNOWN_OFFSET
        """The log end offset of the follower, or -1 if it has not fetched in this term."""
        self.log_start = UNKNOWN_OFFSET
        self.caught_up_ms = caught_up_ms
        """The latest time at which the follower is known to have had all records."""
        self.fetched_ms = NEVER
        self.end_at_fetch = UNKNOWN_OFFSET
        """The log end offset of the leader at the last fetch."""

    def fetched(self, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ms: int) -> None:
        """Record a fetch from `offset` on, which shows that the follower has all records before it."""
        if broker_epoch != self.broker_epoch:  # another process: what its predecessor had fetched does not count
            self.broker_epoch = broker_epoch
            self.fetched_ms = NEVER
            self.end_at_fetch = UNKNOWN_OFFSET
        if offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif self.end_at_fetch != UNKNOWN_OFFSET and offset >= self.end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.log_end = offset
        self.log_start = log_start
        self.fetched_ms = now_ms
        self.end_at_fetch = max(self.end_at_fetch, leader_end)


class IsrProposal(NamedTuple):
    """A change of the ISR. Write it only if the node has `state.version` and the `joining` brokers are registered."""

    state: PartitionState
    """The new content of the node, with the version that the node must have before the write."""
    joining: tuple[tuple[int, int], ...]
    """(broker, broker epoch) of each new member. The same `multi` must check both (KIP-841, KIP-903)."""


class DivergingEpoch(NamedTuple):
    """The answer to a follower whose log has diverged: the last common epoch, and its end in the leader's log."""

    epoch: int
    end_offset: int


class EpochLog(Protocol):
    """The offsets and leader epochs of a log."""

    @property
    def log_end_offset(self) -> int:
        """Return the offset of the next record."""

    @property
    def log_start_offset(self) -> int:
        """Return the first offset."""

    @property
    def leader_epoch(self) -> int | None:
        """Return the epoch of the last batch, or None."""

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch`, and its end offset; (-1, -1) if it is unknown."""


class LeaderLog(EpochLog, Protocol):
    """The log of a leader."""

    @property
    def high_watermark(self) -> int:
        """Return the high watermark. All records before it are committed."""


class LeaderReplica(Protocol):
    """What a term uses of its replica, which owns the offsets. The term only decides when they advance."""

    @property
    def log(self) -> LeaderLog:
        """Return the log. It is always the same object."""

    @property
    def stored_end(self) -> int:
        """Return the end of the records that the leader counts. Those after it must be synced first."""

    def advance_high_watermark(self, offset: int) -> None:
        """Set the log's high watermark, before the waits for it finish."""


def end_offset_for_epoch(log: EpochLog, leader_epoch: int, epoch: int) -> tuple[int, int]:
    """Return the largest leader epoch not above `epoch`, and its end offset, or (-1, -1) if unknown (KIP-101).

    The leader's epoch counts from its election on. The log records it only with the first append.
    """
    end, latest = log.log_end_offset, log.leader_epoch
    if epoch == leader_epoch:
        return epoch, end
    if 0 <= epoch < leader_epoch and (latest is None or latest < epoch):
        return (epoch if latest is None else latest), end
    return log.end_offset_for_epoch(epoch)


def check_leader_epoch(epoch: int, current: int) -> None:
    """Raise FENCED_LEADER_EPOCH if the epoch of a request is too old, UNKNOWN_LEADER_EPOCH if too new (KIP-320).

    A negative epoch is not checked.
    """
    if epoch < 0 or epoch == current:
        return
    code = ErrorCode.FENCED_LEADER_EPOCH if epoch < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    raise ProtocolError(code, f"leader epoch {epoch} of the request is not the current one, {current}")


class Leadership:
    """The leadership of one partition for one term, under one leader epoch."""

    __slots__ = (
        "_deleted_end",
        "_followers",
        "_live",
        "_log",
        "_max_lag_ms",
        "_maximal",
        "_now_ms",
        "_pending",
        "_replica",
        "_undecided",
        "broker",
        "epoch_start",
        "isr",
        "min_insync_replicas",
        "over",
        "replicas",
        "state",
        "waits",
    )

    def __init__(
        self,
        broker: int,
        replicas: Iterable[int],
        state: PartitionState,
        replica: LeaderReplica,
        *,
        min_insync_replicas: int = 1,
        max_lag_ms: int = 30_000,
        live: Mapping[int, int] | None = None,
        now_ms: int = 0,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Start leading under `state`. Then call `appended`: the log may have records that can be committed at once.

        `live` maps the brokers that may join the ISR to their broker epochs. Exclude those that stop or lack records.
        A member that is not in it leaves the ISR. If it is empty, the live brokers are unknown.
        For `later`, see `Waits`.
        """
        self.broker = broker
        self.replicas = tuple(replicas)
        self.state = state
        self.isr = frozenset(state.isr)
        """The members that are known to be in the tree."""
        self._replica = replica
        self._log = log = replica.log
        self.epoch_start = log.log_end_offset
        self._deleted_end = log.log_start_offset
        """The log start as DeleteRecords has moved it. A follower may join although it has what retention deleted."""
        self.min_insync_replicas = min(min_insync_replicas, len(self.replicas))
        """The effective minimum. It is never larger than the number of replicas, as in Kafka."""
        self.over = False
        self._max_lag_ms = max_lag_ms
        self._now_ms = now_ms
        self._live = dict(live or {})
        self._pending: frozenset[int] | None = None
        self._undecided: frozenset[int] = frozenset()
        self._maximal = self.isr
        self._followers = {
            other: Follower(other, now_ms if other in self.isr else NEVER) for other in self.replicas if other != broker
        }
        self.waits = Waits(log.high_watermark, later)
        """For records that were appended in this term, or that were in the log at its start."""

    def __repr__(self) -> str:
        ends = f"HW {self.high_watermark}, LEO {self._log.log_end_offset}"
        return f"Leadership(leader {self.broker}, epoch {self.leader_epoch}, {ends})"

    @property
    def leader_epoch(self) -> int:
        """Return the epoch of the term."""
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        """Return the log's high watermark."""
        return self._log.high_watermark

    @property
    def under_min_isr(self) -> bool:
        """Return whether acks=all appends must be rejected, and the high watermark stops (KIP-966)."""
        return len(self.isr) < self.min_insync_replicas

    @property
    def exposed_high_watermark(self) -> int | None:
        """Return the high watermark that consumers may see, or None until it has reached the start of the epoch.

        Until then, an earlier leader may have exposed a higher one. Answer OFFSET_NOT_AVAILABLE (KIP-207).
        """
        return self.high_watermark if self.high_watermark >= self.epoch_start else None

    @property
    def low_watermark(self) -> int:
        """Return the lowest log start offset of the live and the in-sync replicas, which completes DeleteRecords.

        Return -1 until each of them has fetched. Kafka counts the live ones only. But a member of the ISR that has just
        died may be elected when it is back, and so may one of the ELR.
        """
        counted = self._maximal.union(self._live, self.state.elr)
        starts = [follower.log_start for follower in self._followers.values() if follower.broker in counted]
        return min([self._deleted_end, *starts])

    # --- the log ---

    def appended(self) -> bool:
        """Count the records that were appended or synced. Return whether the high watermark advances."""
        return self._advance()

    def deleted(self) -> None:
        """Record that DeleteRecords has moved the start of the leader's log."""
        self._deleted_end = self._log.log_start_offset

    # --- followers ---

    def check_fetch(self, *, current_leader_epoch: int, offset: int, last_fetched_epoch: int) -> DivergingEpoch | None:
        """Check a follower's fetch before the log is read. Return where the logs diverge, or None if they agree.

        Raises NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_OUT_OF_RANGE.
        """
        self._check_epoch(current_leader_epoch)
        log = self._log
        if last_fetched_epoch >= 0:
            epoch, end = end_offset_for_epoch(log, self.leader_epoch, last_fetched_epoch)
            if epoch < 0 or end < 0:
                raise _out_of_range(f"epoch {last_fetched_epoch} is unknown to the leader")
            if epoch < last_fetched_epoch or end < offset:
                return DivergingEpoch(epoch, end)
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise _out_of_range(f"offset {offset} is not in {log.log_start_offset}..{log.log_end_offset}")
        return None

    def _check_epoch(self, epoch: int) -> None:
        if self.over:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the term of epoch {self.leader_epoch} has ended")
        check_leader_epoch(epoch, self.leader_epoch)

    def check_follower(self, broker: int, broker_epoch: int) -> Follower:
        """Check the broker of a fetch before the log is read. Return what is known about the follower.

        Raises NOT_LEADER_OR_FOLLOWER if the broker has no replica, or if a newer process of the broker has registered.
        Raises UNKNOWN_LEADER_EPOCH if the leader does not know this registration yet: anyone can send a large epoch,
        and recording it would lock the follower out.
        """
        follower = self._followers.get(broker)
        if self.over or follower is None:
            raise ProtocolError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {broker} does not follow epoch {self.leader_epoch}"
            )
        known = self._live.get(broker, follower.broker_epoch)
        if broker_epoch < known:
            message = f"broker {broker} has registered again, with epoch {known}; this fetch has epoch {broker_epoch}"
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        if self._live and (broker_epoch > known or broker_epoch < 0):
            message = f"this leader knows broker {broker} with epoch {known}; this fetch has epoch {broker_epoch}"
            raise ProtocolError(ErrorCode.UNKNOWN_LEADER_EPOCH, message)
        return follower

    def fetched(self, broker: int, broker_epoch: int, offset: int, *, log_start: int, now_ms: int) -> bool:
        """Record a follower's successful fetch. Return whether the high watermark advances.

        Call it only after `check_fetch` has returned None and the log was read. A fetch that fails or diverges says
        nothing about the follower's log (KAFKA-8400, KAFKA-13141). Raises the errors of `check_follower`.
        """
        follower = self.check_follower(broker, broker_epoch)
        self._now_ms = max(self._now_ms, now_ms)
        follower.fetched(offset, log_start, broker_epoch, self._log.log_end_offset, now_ms)
        return self._advance()

    def follower(self, broker: int) -> Follower | None:
        """Return what is known about a follower, or None if the broker has no replica."""
        return self._followers.get(broker)

    def live_changed(self, live: Mapping[int, int], now_ms: int) -> bool:
        """Record which brokers may join the ISR, by broker epoch. Return whether the high watermark advances."""
        self._live = dict(live)
        return self.passed(now_ms)

    def passed(self, now_ms: int) -> bool:
        """Record the time. Return whether the high watermark advances, because a follower no longer keeps up.

        Call it several times within the maximum lag. After each call, write the `proposal`.
        """
        self._now_ms = max(self._now_ms, now_ms)
        return self._advance()

    # --- in-sync replicas ---

    def proposal(self) -> IsrProposal | None:
        """Return the change of the ISR to write now, or None. Report its outcome before you ask for another one."""
        if self.over or self._pending is not None:
            return None
        staying = frozenset(member for member in self.isr if member == self.broker or not self._lags(member))
        joining = frozenset(broker for broker, follower in self._followers.items() if self._may_join(follower))
        members = tuple(broker for broker in self.replicas if broker in staying | joining)
        elr = eligible(self.state, members, self.min_insync_replicas)
        if (staying | joining, elr) == (self.isr, self.state.elr):
            return None
        self._pending = frozenset(members)
        self._count()
        state = replace(self.state, isr=members, elr=elr)
        epochs = tuple((broker, self._followers[broker].broker_epoch) for broker in members if broker in joining)
        return IsrProposal(state, epochs)

    def _lags(self, member: int) -> bool:
        """Return whether a member must leave the ISR: it does not keep up, or it is dead or shutting down."""
        follower = self._followers.get(member)
        return follower is None or not self._keeps_up(follower) or (bool(self._live) and member not in self._live)

    def _keeps_up(self, follower: Follower) -> bool:
        return follower.log_end == self._log.log_end_offset or self._now_ms - follower.caught_up_ms <= self._max_lag_ms

    def _is_eligible(self, follower: Follower) -> bool:
        return self._live.get(follower.broker, NEVER) == follower.broker_epoch

    def _may_join(self, follower: Follower) -> bool:
        """Return whether the follower fetches, and has all records that the ISR must have.

        A dead one must not join again while the high watermark waits for another member. The follower needs all
        records before the high watermark. A new leader's high watermark may be too low, so it also needs those before
        the epoch's start. It must also keep up: otherwise, it would have to leave at once. While the high watermark
        waits for another member or for min ISR, the state would then change with each fetch. Records that
        DeleteRecords has deleted must not return if the follower is elected, so it must have deleted them too.
        """
        return (
            follower.broker not in self.isr
            and self._is_eligible(follower)
            and self._now_ms - follower.fetched_ms <= self._max_lag_ms
            and follower.log_end >= max(self.high_watermark, self.epoch_start)
            and follower.log_start >= self._deleted_end
            and self._keeps_up(follower)
        )

    def refused(self) -> bool:
        """Record that the proposal was not written and never will be. Return whether the high watermark advances.

        If the write failed because of the version, read the state and call `state_written`.
        """
        self._pending = None
        self._count()
        return self._advance()

    def unknown(self) -> None:
        """Record that the proposal's write has an unknown outcome: it may have happened, or may still happen.

        Its members count until a newer version of the state is known. Reading the old version proves nothing, because
        the write may be delayed. Read the state and pass it to `state_written`. Then the term may propose again.
        """
        self._undecided |= self._pending or frozenset()
        self._pending = None
        self._count()

    def state_written(self, state: PartitionState) -> bool:
        """Record a state that was read from the tree. Return whether the term continues.

        Return False if the tree has a later leader epoch. Then end the term. An older version is ignored.
        """
        if state.leader_epoch != self.leader_epoch or state.leader != self.broker:
            return state.version <= self.state.version
        if state.version > self.state.version:
            self._adopt(state)
        return True

    def _adopt(self, state: PartitionState) -> bool:
        self.state = state
        self.isr = frozenset(state.isr)
        self._pending = None
        self._undecided = frozenset()
        self._count()
        return self._advance()

    def _count(self) -> None:
        self._maximal = self.isr | self._undecided | (self._pending or frozenset())

    # --- the high watermark ---

    def _advance(self) -> bool:
        """Advance the high watermark. Finish the waits for records before it.

        It stops until the ELR is empty, even if `min.insync.replicas` was lowered, because its members must have all
        committed records.
        """
        target = self._replica.stored_end
        high_watermark = self._log.high_watermark
        if target <= high_watermark or self.over or len(self.isr) < self.min_insync_replicas or self.state.elr:
            return False
        for broker, follower in self._followers.items():
            if follower.log_end < target and (
                broker in self._maximal or (self._is_eligible(follower) and self._keeps_up(follower))
            ):
                target = follower.log_end
        if target <= high_watermark:
            return False
        self._replica.advance_high_watermark(target)
        self.waits.commit(target)
        return True

    def end(self) -> None:
        """End the term. Its waits end with LOST. Call it before the log is truncated or follows another leader."""
        self.over = True
        self.waits.lose()


def _out_of_range(reason: str) -> ProtocolError:
    return ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, f"cannot fetch: {reason}")
