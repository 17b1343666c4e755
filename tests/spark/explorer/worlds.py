"""The parts of an exploration: worlds, bounds, rules, and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oncelog.spark.commit.finish import COMMIT, abort_batch
from oncelog.spark.commit.names import Attempt, task_id
from oncelog.spark.commit.ownership import NO_PERMISSION, Permission
from oncelog.spark.commit.plan import PLAN
from oncelog.spark.commit.record import APP, EACH, NO_SOURCE, STREAM, WRITE, Source
from oncelog.spark.commit.steps import Sink
from oncelog.spark.commit.task import TASK
from oncelog.spark.commit.undo import UNDO, UNDO_ACCEPTING
from spark.explorer import kafka as model

SINK = Sink("p", model.PARTITIONS[model.DECISION], model.PARTITIONS[:2])
SPLITS = (
    (((0, 0),), ((1, 1),)),
    (((1, 1),), ((0, 0),)),
    (((0, 0), (1, 1)), ()),
)
"""By driver: for each slot, the (partition, row) that it writes.

A repeated plan may split the same rows differently.
"""
SLOTS = 2
ROWS = 2
KINDS = (
    *("driver", "twin", "kill", "stage", "lose", "timeout", "late", "dup", "settle", "slow", "rewind", "undo", "deny"),
    *("other", "leap", "accept", "move", "hide", "reject", "cut", "remake", "compact", "stale"),
    *("older", "renamed"),
)
"""The kinds of faults.

driver: a new one starts, whatever the previous one does.
twin: another attempt, with another number or the same.
kill: a task aborts.
stage: Spark abandons the stage.
lose: a marker is lost, and the coordinator does not know.
timeout: a transaction times out before C1b has checked; late: after. With two-phase commit, only the driver's can.
dup: a copy of a request stays in flight.
slow: the wait for markers, or for the end of a transaction, ends too early.
rewind: a new driver with an old checkpoint; leap: with one that is a batch ahead.
settle, undo, accept: `oncelog sink settle`, `abort` and `abort --accept-loss`.
deny: the program that writes a marker by hand lacks ClusterAction.
other: the next one of `Bounds.queries` starts with the same prefix.
move: another broker becomes the coordinator.
hide: a list omits a transaction, because its coordinator moves and no broker answers for it.
reject: the decision topic rejects a message as too large.
cut: an output partition loses its last row, which belongs to no batch (an unclean leader election).
remake: the output topic is deleted and created again.
compact: the broker compacts the decision topic.
stale: a broker that has just started reports an older high watermark to P0, K1 or C1b. P2 reads the whole topic,
    because brokers do not report an end below the high watermark of an earlier leader (KIP-207).
older: a driver starts with a copy of the checkpoint that has lost the newest batches, or only the offsets of the next
    one. It plans its batches again, with other offsets. The drivers with the original may run, too, and a leap may make
    them go on after a batch that the copy has written.
renamed: a driver starts with a copy that has lost the file `metadata`, so that its query gets a new id. It may also
    have lost the newest commits.
"""
DEAD = ("dead",)
OWN, PLANNED_AGAIN, RENAMED, CONTINUED = 0, 1, 2, 3
"""The checkpoint of a driver: the original, or one of the copies that the faults `older` and `renamed` make.

CONTINUED: after its first batch, a copy of `older`. Then the start of the batch is its own, too, and not only the end.
"""


class Query(NamedTuple):
    """A streaming query, an application that writes batches with txnAppId and txnVersion, or one write without them.

    EACH: a query that writes in foreachBatch. Each plan is another call of the function.

    `first`: its first batch or version. `known_by`: how a plan identifies its query, "" if it cannot.
    `prefix`: everything that it writes has the same decision topic.
    """

    kind: str = STREAM
    name: str = "q"
    permission: Permission = NO_PERMISSION
    first: int = 0
    known_by: str = ""
    prefix: str = SINK.prefix

    def source(self, batch: int, plan: int = 0, copy: int = OWN) -> Source:
        """Return the source of the rows as stored in the record."""
        call = str(plan) if self.kind == EACH else ""
        name = f"{self.name}-renamed" if copy == RENAMED else self.name
        start = end = ""
        if self.kind == STREAM:
            start = f"{batch} again" if copy == CONTINUED else str(batch or "")
            end = f"{batch + 1} again" if copy in (PLANNED_AGAIN, CONTINUED) else str(batch + 1)
        return Source(self.kind, name, batch, f"/{self.name}" if self.known_by else "", call, "", start, end)

    @property
    def applicant(self) -> Source:
        """Return the query of a plan, as far as the plan knows it."""
        if self.kind == EACH:
            return Source(WRITE, self.name, 0)
        known = self.source(-1)._replace(query=self.name if self.known_by == ID else "", start="", end="")
        return known if self.known_by else NO_SOURCE

    @property
    def repeats(self) -> bool:
        """Return whether a restarted driver writes under the same name. A write without a name never does."""
        return self.kind != WRITE


ID, CHECKPOINT = "id", "checkpoint"
QUERY = Query()
SUCCESSOR = Query(name="r")
TAKER = Query(permission=Permission(take_over=True))
SUCCESSOR_TAKER = Query(name="r", permission=Permission(take_over=True))
MOVED = Query(permission=Permission(adopt_checkpoint=True))
APPLICATION = Query(APP, "a", first=3)
FOREACH_BATCH = Query(EACH, "e")
WRITES = (Query(WRITE, "first"), Query(WRITE, "second"))
TWO_PREFIXES = (WRITES[0], WRITES[1]._replace(prefix="r"))


@dataclass(frozen=True)
class Rules:
    """The protocol's tables. The tests remove single rules from them."""

    plan: tuple[Any, ...] = PLAN
    task: tuple[Any, ...] = TASK
    commit: tuple[Any, ...] = COMMIT
    abort: Callable[..., Any] = abort_batch
    undo: tuple[Any, ...] = UNDO
    accept: tuple[Any, ...] = UNDO_ACCEPTING
    name: Callable[[str, int, Attempt, int], str] = task_id


@dataclass(frozen=True)
class Bounds:
    """The bounds of an exploration. `faults`: all kinds together. `batches`: of each query."""

    batches: int = 2
    faults: int = 2
    limits: dict[str, int] = field(default_factory=dict)
    states: int = 10**9
    begin: str = ""
    split: int = 0
    queries: tuple[Query, ...] = (Query(),)
    untouched: bool = False
    """Whether the first driver must complete, whichever others start."""
    copy: int = OWN
    """The checkpoint of the first driver."""
    torn: bool = False
    """Whether a plan may fail because a batch is torn, as after a timeout. Lost and duplicated rows stay violations."""

    def budget(self) -> tuple[int, ...]:
        """Return the available faults at the beginning: of all kinds together, then of each."""
        default = {"driver": 2, "lose": 2}
        return (self.faults, *(min(self.faults, self.limits.get(kind, default.get(kind, 1))) for kind in KINDS))


class World(NamedTuple):
    """The whole state, as indexes of the explorer's tables.

    `committed`: by started query, the batches in Spark's commit log (or acknowledged to the writer). `late`: whether a
    decided transaction may have timed out. `accepted`: the offset in the decision topic of a record that accepts a
    loss, its (query, batch), and the permanently visible rows. `leapt`: (query, batch) that the commit log has from
    elsewhere. `copied`: (query, batch, copy) in the commit logs of copies, as far as their drivers have written it.
    """

    kafka: int
    flight: int
    drivers: int
    tasks: int
    committed: tuple[tuple[int, ...], ...]
    budget: tuple[int, ...]
    late: bool = False
    accepted: tuple[tuple[int, tuple[int, int], tuple[Any, ...]], ...] = ()
    leapt: tuple[tuple[int, int], ...] = ()
    copied: tuple[tuple[int, int, int], ...] = ()

    def at(self, kafka: int) -> World:
        """Return the same world with another Kafka.

        Most steps do this, and `_replace` would take four times as long.
        """
        return tuple.__new__(World, (kafka, *self[1:]))


class Driver(NamedTuple):
    phase: str
    query: int
    batch: int
    node: int
    progress: Any = None
    results: tuple[Any, ...] = ()
    copy: int = OWN


class Task(NamedTuple):
    driver: int
    query: int
    batch: int
    slot: int
    node: int
    progress: Any = None
    copy: int = OWN

    @property
    def split(self) -> int:
        """Return the rows that it writes, as one number."""
        return split_of(self.driver, self.query, self.batch, self.slot, self.copy)


def split_of(driver: int, query: int, batch: int, slot: int, copy: int = OWN) -> int:
    """Return (copy, driver, query, batch, slot) as one number."""
    return (((copy * 10 + driver) * 10 + query) * 10 + batch) * 10 + slot


def rows_of(query: int, batch: int, copy: int) -> tuple[tuple[int, int, int], ...]:
    """Return the rows of a batch. If its offsets were planned again, it has one of the original's rows, and another."""
    first = int(copy in (PLANNED_AGAIN, CONTINUED))
    return tuple((query, batch, row) for row in range(first, first + ROWS))


@dataclass
class Report:
    """The result of an exploration. `trace`: the shortest way to the violation."""

    states: int = 0
    transitions: int = 0
    violation: str = ""
    trace: tuple[str, ...] = ()
    seconds: float = 0.0
    complete: bool = True
    recoveries: int = 0

    def __str__(self) -> str:
        found = f"VIOLATION {self.violation} after {len(self.trace)} steps" if self.violation else "no violation"
        whole = "" if self.complete else " (cut off)"
        return f"{self.states:,} states, {self.transitions:,} transitions{whole}, {self.seconds:.1f} s: {found}"


class Table:
    """Values by number, numbers by value."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._added: dict[tuple[int, Any], int] = {}
        self._removed: dict[tuple[int, Any], int] = {}

    def __call__(self, value: Any) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def added(self, number: int, item: Any) -> int:
        """Return the number of the tuple `number` with the item added, in a deterministic order."""
        known = self._added.get((number, item))
        if known is None:
            known = self._added[number, item] = self(tuple(sorted((*self.values[number], item), key=repr)))
        return known

    def removed(self, number: int, item: Any) -> int:
        """Return the number of the tuple `number` without the first item that equals this one."""
        known = self._removed.get((number, item))
        if known is None:
            items = list(self.values[number])
            items.remove(item)
            known = self._removed[number, item] = self(tuple(items))
        return known
