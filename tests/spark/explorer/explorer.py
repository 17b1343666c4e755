"""Every interleaving of drivers, tasks and faults within bounds, breadth first.

A driver that is never scheduled again has crashed, one that is scheduled later is a zombie: so neither needs an
action of its own. The same holds for tasks. What costs something is a fault: their number is bounded, in all and
of each kind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.finish import Committing
from oncelog.spark.commit.names import Attempt
from oncelog.spark.commit.plan import Carried, Planning
from oncelog.spark.commit.record import STREAM, Owner, Source
from oncelog.spark.commit.steps import Sink
from oncelog.spark.commit.task import Tasking, abandon
from spark.explorer import kafka as model
from spark.explorer.programs import Programs
from spark.explorer.worlds import (
    DEAD,
    KINDS,
    SINK,
    SLOTS,
    SPLITS,
    Bounds,
    Driver,
    Report,
    Rules,
    Table,
    Task,
    World,
)


class Explorer:
    """One exploration."""

    def __init__(self, cluster: model.Cluster, bounds: Bounds, rules: Rules | None = None, sink: Sink = SINK) -> None:
        self.cluster, self.bounds, self.rules, self.sink = cluster, bounds, rules or Rules(), sink
        self.programs = Programs()
        self.kafkas, self.flights, self.drivers, self.tasks = Table(), Table(), Table(), Table()
        self._moves: dict[Any, list[tuple[int, int, Any]]] = {}
        self._kafka_moves: dict[int, list[tuple[str, str, int, Any]]] = {}
        self._checked: dict[tuple[int, int], str] = {}

    # Starting things

    def first(self) -> World:
        """One driver and nothing else; with `Bounds.begin` it went alone until that phase of its first batch."""
        nothing = self.kafkas(model.NOTHING)
        drivers = self.drivers((self._plan(0),))
        world = World(nothing, self.flights(()), drivers, self.tasks(()), -1, (0,) * (len(KINDS) + 1))
        while self.bounds.begin and self.drivers.values[world.drivers][0].phase != self.bounds.begin:
            _, world = next(self.expand(world))
        return world._replace(budget=self.bounds.budget())

    def _plan(self, batch: int, phase: str = "plan") -> Driver:
        return Driver(phase, batch, self.programs.start(self.rules.plan, Planning(self.sink)))

    def _task(self, driver: int, batch: int, carried: Carried, attempt: Attempt) -> Task:
        source = Source(STREAM, "q", batch)
        tasking = Tasking(self.sink, carried, source, attempt, name=self.rules.name)
        return Task(driver, batch, attempt.slot, self.programs.start(self.rules.task, tasking))

    # What can happen next

    def expand(self, world: World) -> Iterator[tuple[str, World]]:
        """(what happened, the world afterwards)."""
        drivers, tasks = self.drivers.values[world.drivers], self.tasks.values[world.tasks]
        for index, driver in enumerate(drivers):
            if driver is not DEAD:
                yield from self._driver_moves(world, index, driver)
        for task in tasks:
            yield from self._task_moves(world, task)
        yield from self._coordinator_moves(world)
        if world.budget[0] > 0:
            yield from self._faults(world, drivers, tasks)
        flight = self.flights.values[world.flight]
        for item in flight:
            after = self._land(world.kafka, item)
            if after is not None:
                left = self.flights(tuple(i for i in flight if i is not item))
                yield f"late {item}", world._replace(kafka=after, flight=left)

    def moves(self, kafka: int, node: int, progress: Any, split: int) -> list[tuple[int, int, Any]]:
        """What the operation at this node can do: (kafka, node, progress) afterwards."""
        key = (kafka, node, progress, split)
        known = self._moves.get(key)
        if known is None:
            known = self._moves[key] = [
                (
                    self.kafkas(s.kafka),
                    node if s.progress is not None else self.programs.advance(node, s.answer),
                    s.progress,
                )
                for s in self._apply(self.kafkas.values[kafka], node, progress, split)
            ]
        return known

    def _apply(self, kafka: model.Kafka, node: int, progress: Any, split: int) -> list[model.Step]:
        operation = self.programs.operation[node]
        assert operation is not None
        if not isinstance(operation, op.ProduceRows):
            return self.cluster.apply(kafka, operation, progress)
        driver, batch, slot = split // 100, split // 10 % 10, split % 10
        rows = tuple((part, (batch, row)) for part, row in SPLITS[(driver + self.bounds.split) % len(SPLITS)][slot])
        if operation.owner.pid < 0:
            return [model.Step(kafka, op.Rows(op.Outcome.DONE, len(rows), ()))]
        return self.cluster.rows(kafka, operation.owner, rows, progress)

    def _driver_moves(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        if driver.phase == "stage":
            return
        if driver.phase == "log":
            yield f"D{index} logs batch {driver.batch}", self._logged(world, index, driver)
            return
        for kafka, node, progress in self.moves(world.kafka, driver.node, driver.progress, 0):
            after = world._replace(kafka=kafka)
            moved = driver._replace(node=node, progress=progress)
            label = f"D{index} {driver.phase} {self.programs.operation[driver.node]}"
            yield label, self._settle_driver(after, index, moved)

    def _task_moves(self, world: World, task: Task) -> Iterator[tuple[str, World]]:
        split = task.driver * 100 + task.batch * 10 + task.slot
        for kafka, node, progress in self.moves(world.kafka, task.node, task.progress, split):
            after = self._without(world._replace(kafka=kafka), task)
            label = f"T{task.driver}.{task.batch}.{task.slot} {self.programs.operation[task.node]}"
            moved = task._replace(node=node, progress=progress)
            if self.programs.operation[node] is not None:
                yield label, self._with(after, moved)
            else:
                yield label, self._task_ended(after, moved)

    # What follows from a program's end

    def _settle_driver(self, world: World, index: int, driver: Driver) -> World:
        """Put the driver back, after what Spark does at once when its program has ended."""
        while driver.phase not in ("stage", "log") and self.programs.operation[driver.node] is None:
            result = self.programs.result[driver.node]
            failed = isinstance(result, Exception)
            if driver.phase in ("abort", "settle") or (failed and driver.phase == "plan"):
                return self._put(world, index, DEAD)
            if failed:
                driver = self._aborting(driver)
            elif driver.phase == "plan":
                return self._stage(world, index, driver, result.carried())
            else:
                driver = driver._replace(phase="log", node=-1, progress=None, results=())
        return self._put(world, index, driver)

    def _aborting(self, driver: Driver) -> Driver:
        def phase(messages: Any) -> Any:
            yield from self.rules.abort(messages)
            return None

        return driver._replace(phase="abort", node=self.programs.start((phase,), driver.results), progress=None)

    def _stage(self, world: World, index: int, driver: Driver, carried: Carried) -> World:
        for slot in range(SLOTS):
            attempt = Attempt(slot, 0, driver.batch * SLOTS + slot)
            world = self._with(world, self._task(index, driver.batch, carried, attempt))
        # The carried state is kept as the results' last element, for attempts that start later.
        stage = Driver("stage", driver.batch, -1, carried, (None,) * SLOTS)
        return self._put(world, index, stage)

    def _task_ended(self, world: World, task: Task) -> World:
        driver = self.drivers.values[world.drivers][task.driver]
        if (
            driver is DEAD
            or driver.phase != "stage"
            or driver.batch != task.batch
            or driver.results[task.slot] is not None
        ):
            return world
        result = self.programs.result[task.node]
        if isinstance(result, Tasking):
            results = (*driver.results[: task.slot], result.message(), *driver.results[task.slot + 1 :])
            if None in results:
                return self._put(world, task.driver, driver._replace(results=results))
            node = self.programs.start(self.rules.commit, Committing(self.sink, results))
            return self._settle_driver(world, task.driver, Driver("commit", driver.batch, node, None, results))
        others = (t for t in self.tasks.values[world.tasks] if t[:3] == task[:3])
        if any(others):
            return world
        return self._settle_driver(world, task.driver, self._aborting(driver))

    def _logged(self, world: World, index: int, driver: Driver) -> World:
        if world.committed >= driver.batch:
            return self._put(world, index, DEAD)
        world = world._replace(committed=driver.batch)
        more = driver.batch + 1 < self.bounds.batches
        return self._put(world, index, self._plan(driver.batch + 1) if more else DEAD)

    def _put(self, world: World, index: int, driver: Any) -> World:
        drivers = self.drivers.values[world.drivers]
        return world._replace(drivers=self.drivers((*drivers[:index], driver, *drivers[index + 1 :])))

    def _with(self, world: World, task: Task) -> World:
        return world._replace(tasks=self.tasks(tuple(sorted((*self.tasks.values[world.tasks], task), key=repr))))

    def _without(self, world: World, task: Task) -> World:
        tasks = list(self.tasks.values[world.tasks])
        tasks.remove(task)
        return world._replace(tasks=self.tasks(tuple(tasks)))

    # The coordinator, and faults

    def _coordinator_moves(self, world: World) -> Iterator[tuple[str, World]]:
        for kind, label, kafka, copy in self._kafka_only(world.kafka):
            if kind == "timeout" and self._past_check(world):
                kind = "late"
            if kind == "":
                yield label, world._replace(kafka=kafka)
            elif (spent := self._spend(world, kind)) is not None:
                after = spent._replace(kafka=kafka, late=world.late or kind == "late")
                yield label, after if copy is None else self._fly(after, copy)

    def _past_check(self, world: World) -> bool:
        """Whether a commit is decided, or C1b has looked already: from there on a time-out may tear, loudly."""
        log = self.kafkas.values[world.kafka].logs[model.DECISION]
        records = [record for record in model.committed(log) if record is not None]
        if records and not records[-1].settled:
            return True
        for driver in self.drivers.values[world.drivers]:
            if driver is not DEAD and driver.phase == "commit":
                operation = self.programs.operation[driver.node]
                if not isinstance(operation, op.ListTransactions | op.DescribeTransactions):
                    return True
        return False

    def _kafka_only(self, number: int) -> list[tuple[str, str, int, Any]]:
        known = self._kafka_moves.get(number)
        if known is not None:
            return known
        kafka, found = self.kafkas.values[number], []
        for name, txn, part in self.cluster.pending_markers(kafka):
            delivered = self.kafkas(self.cluster.deliver(kafka, name, txn, part))
            lost = self.kafkas(self.cluster.deliver(kafka, name, txn, part, lost=True))
            copy = op.WriteTxnMarkers(model.PARTITIONS[part], txn.pid, txn.epoch, txn.state == model.PREPARE_COMMIT)
            what = f"marker of {name} in {part}"
            found += [
                ("", what, delivered, None),
                ("lose", f"{what} is lost", lost, None),
                ("dup", f"{what}, and a copy stays on its way", delivered, copy),
            ]
        for name, txn in kafka.txns:
            if txn.state == model.ONGOING:
                found.append(("timeout", f"time-out of {name}", self.kafkas(self.cluster.abort(kafka, name)), None))
        self._kafka_moves[number] = found
        return found

    def _spend(self, world: World, kind: str) -> World | None:
        place = KINDS.index(kind) + 1
        budget = world.budget
        if budget[0] == 0 or budget[place] == 0:
            return None
        after = list(budget)
        after[0] -= 1
        after[place] -= 1
        # What the total no longer allows is not kept apart.
        return world._replace(budget=tuple(min(b, after[0]) if i else b for i, b in enumerate(after)))

    def _fly(self, world: World, item: Any) -> World:
        flight = self.flights.values[world.flight]
        return world._replace(flight=self.flights(tuple(sorted((*flight, item), key=repr))))

    def _land(self, number: int, item: Any) -> int | None:
        kafka = self.kafkas.values[number]
        if isinstance(item, op.EndTxn):
            result = self.cluster.end(kafka, item.owner, item.commit)
            return None if result is None else self.kafkas(result[0])
        if isinstance(item, op.WriteTxnMarkers):
            # A coordinator's copy: the new protocol refuses one of an epoch it knows already.
            part = model.INDEX[item.at]
            after = self.cluster.marker(kafka, part, item.pid, item.epoch, commit=item.commit, strict=self.cluster.new)
            return number if after is None else self.kafkas(after)
        steps = self.cluster.apply(kafka, item, None)
        return self.kafkas(steps[0].kafka) if steps else None

    def _faults(self, world: World, drivers: Any, tasks: Any) -> Iterator[tuple[str, World]]:
        spent = self._spend(world, "driver")
        if spent is not None and world.committed + 1 < self.bounds.batches:
            started = self.drivers((*drivers, self._plan(world.committed + 1)))
            yield f"D{len(drivers)} starts", spent._replace(drivers=started)
        spent = self._spend(world, "rewind")
        if spent is not None and world.committed > 0:
            started = self.drivers((*drivers, self._plan(0)))
            yield f"D{len(drivers)} starts with an old checkpoint", spent._replace(drivers=started)
        spent = self._spend(world, "settle")
        if spent is not None:
            yield "settle starts", spent._replace(drivers=self.drivers((*drivers, self._plan(-1, "settle"))))
        spent = self._spend(world, "undo")
        if spent is not None:
            undoing = Driver("settle", -1, self.programs.start(self.rules.undo, Planning(self.sink)))
            # Left half done it leaves a torn batch behind, loudly: it is to be run again.
            yield "undo starts", spent._replace(drivers=self.drivers((*drivers, undoing)), late=True)
        for index, driver in enumerate(drivers):
            if driver is not DEAD:
                yield from self._driver_faults(world, index, driver)
        for task in tasks:
            split = task.driver * 100 + task.batch * 10 + task.slot
            yield from self._task_faults(world, task, split)

    def _driver_faults(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        if driver.phase == "stage":
            spent = self._spend(world, "twin")
            for slot in range(SLOTS):
                if spent is not None and driver.results[slot] is None:
                    for number in (0, 1):
                        attempt = Attempt(slot, number, 5 + slot)
                        task = self._task(index, driver.batch, driver.progress, attempt)
                        yield f"twin {attempt} of D{index}", self._with(spent, task)
            spent = self._spend(world, "stage")
            if spent is not None:
                yield f"stage of D{index} fails", self._settle_driver(spent, index, self._aborting(driver))
            return
        if driver.node >= 0:
            yield from self._copies(world, driver.node, driver.progress)
            yield from self._slow(world, index, driver)
            yield from self._denied(world, index, driver)

    def _denied(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[driver.node]
        spent = self._spend(world, "deny") if isinstance(operation, op.WriteTxnMarkers) else None
        if spent is not None:
            moved = driver._replace(node=self.programs.advance(driver.node, op.Outcome.DENIED))
            yield f"D{index} may not do {operation}", self._settle_driver(spent, index, moved)

    def _slow(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[driver.node]
        spent = self._spend(world, "slow") if isinstance(operation, op.FindMarkers) else None
        if spent is None or self.moves(world.kafka, driver.node, None, 0):
            return
        assert isinstance(operation, op.FindMarkers)
        kafka = self.kafkas.values[world.kafka]
        kinds = {None: op.Marker.MISSING, model.COMMIT: op.Marker.COMMIT, model.ABORT: op.Marker.ABORT}
        answer = tuple(
            kinds[model.first_marker(kafka.logs[model.INDEX[p.at]], p.pid, p.after)] for p in operation.places
        )
        moved = driver._replace(node=self.programs.advance(driver.node, answer), progress=None)
        yield f"D{index} looks for markers too briefly", self._settle_driver(spent, index, moved)

    def _task_faults(self, world: World, task: Task, split: int) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[task.node]
        for label, after in self._copies(world, task.node, task.progress):
            # K2 without an answer ends the attempt: its copy may land much later, on an id that nobody uses then.
            ends = isinstance(operation, op.InitProducerId) and not self.rules.repeat_init
            yield label, self._without(after, task) if ends else after
        if isinstance(operation, op.ProduceRows) and operation.owner.pid >= 0:
            spent = self._spend(world, "kill")
            if spent is not None:
                dying = task._replace(node=self.programs.start((_abandon,), operation.owner), progress=None, batch=-1)
                yield f"T{task[:3]} is killed", self._with(self._without(spent, task), dying)

    def _copies(self, world: World, node: int, progress: Any) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[node]
        items: tuple[Any, ...] = ()
        if isinstance(operation, op.EndTxn | op.InitProducerId | op.WriteTxnMarkers):
            items = (operation,)
        elif isinstance(operation, op.EndAll):
            items = tuple(op.EndTxn(owner, operation.commit) for owner in operation.owners)
        if items and (spent := self._spend(world, "dup")) is not None:
            for item in items:
                yield f"a copy stays on its way: {item}", self._fly(spent, item)

    # What must hold

    def check(self, world: World) -> str:
        """The violated invariant, or nothing."""
        key = (world.kafka, world.committed)
        known = self._checked.get(key)
        if known is None:
            known = self._checked[key] = self._check(*key)
        return known

    def _check(self, number: int, committed: int) -> str:
        kafka = self.kafkas.values[number]
        rows = [row for log in kafka.logs[:2] for row in model.committed(log)]
        if len(rows) != len(set(rows)):
            return f"doubled: {sorted(rows)}"
        lost = {(batch, row) for batch in range(committed + 1) for row in range(2)} - set(rows)
        return f"lost: {sorted(lost)} although batch {committed} is in the commit log" if lost else ""

    def recover(self, world: World) -> str:
        """All else stands still, markers arrive, a new driver runs to the end: all rows once, nothing left open."""
        number, committed = world.kafka, world.committed
        error = ""
        for _ in range(self.bounds.batches + 2):
            if committed + 1 >= self.bounds.batches:
                break
            number, error = self._run_batch(number, committed + 1)
            if not error:
                committed += 1
        if error:
            torn = error == "TornBatchError" and world.late
            return "" if torn else f"stuck: a new driver fails with {error}"
        number, _ = self._alone(number, self.programs.start(self.rules.plan, Planning(self.sink)), 0)
        kafka = self.kafkas.values[number]
        left = [name for name, txn in kafka.txns if txn.state == model.ONGOING and name != self.sink.prefix]
        hanging = [pid for log in kafka.logs for pid in model.open_since(log)]
        if left or hanging:
            return f"left open after settle: {left} {hanging}"
        return self._check(number, committed)

    def _run_batch(self, number: int, batch: int) -> tuple[int, str]:
        number, planned = self._alone(number, self.programs.start(self.rules.plan, Planning(self.sink)), 0)
        messages: list[Any] = []
        for slot in range(SLOTS):
            if isinstance(planned, Exception):
                return number, type(planned).__name__
            task = self._task(1, batch, planned.carried(), Attempt(slot, 0, slot))
            number, result = self._alone(number, task.node, 100 + batch * 10 + slot)
            if isinstance(result, Exception):
                return number, type(result).__name__
            messages.append(result.message())
        node = self.programs.start(self.rules.commit, Committing(self.sink, tuple(messages)))
        number, result = self._alone(number, node, 0)
        return number, type(result).__name__ if isinstance(result, Exception) else ""

    def _alone(self, number: int, node: int, split: int) -> tuple[int, Any]:
        progress: Any = None
        while True:
            number = self._all_markers(number)
            if self.programs.operation[node] is None:
                return number, self.programs.result[node]
            number, node, progress = self.moves(number, node, progress, split)[0]

    def _all_markers(self, number: int) -> int:
        while plain := [m for m in self._kafka_only(number) if m[0] == ""]:
            number = plain[0][2]
        return number

    # The search

    def run(self, *, recover_every: int = 0) -> Report:
        """Breadth first until the first violation, or all is seen; of every `recover_every` states one must recover."""
        began, report = time.monotonic(), Report()
        first = self.first()
        came: dict[World, tuple[World, str] | None] = {first: None}
        todo = deque([first])
        while todo and not report.violation and len(came) < self.bounds.states:
            world = todo.popleft()
            for label, after in self.expand(world):
                report.transitions += 1
                if after in came:
                    continue
                came[after] = (world, label)
                todo.append(after)
                report.violation = self.check(after)
                if not report.violation and recover_every and len(came) % recover_every == 0:
                    report.recoveries += 1
                    report.violation = self.recover(after)
                if report.violation:
                    report.trace = _way(came, after)
                    break
        report.states, report.complete = len(came), not todo or bool(report.violation)
        report.seconds = time.monotonic() - began
        return report


def _abandon(owner: Owner) -> Any:
    yield from abandon(owner)
    return owner


def _way(came: dict[World, tuple[World, str] | None], world: World) -> tuple[str, ...]:
    steps: list[str] = []
    while (before := came[world]) is not None:
        world, label = before
        steps.append(label)
    return tuple(reversed(steps))
