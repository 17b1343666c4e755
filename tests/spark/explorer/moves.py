"""The next steps of drivers, tasks and the coordinator, and Spark's immediate reaction to the end of a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.finish import Committing
from oncelog.spark.commit.names import Attempt
from oncelog.spark.commit.plan import Carried, Planning
from oncelog.spark.commit.record import Record
from oncelog.spark.commit.steps import Sink
from oncelog.spark.commit.task import Tasking
from spark.explorer import kafka as model
from spark.explorer.programs import Programs
from spark.explorer.worlds import (
    CONTINUED,
    DEAD,
    OWN,
    PLANNED_AGAIN,
    SINK,
    SLOTS,
    SPLITS,
    Bounds,
    Driver,
    Rules,
    Table,
    Task,
    World,
    rows_of,
    split_of,
)


class Moves:
    """The worlds of one exploration, and the transitions between them that are not faults."""

    def __init__(self, cluster: model.Cluster, bounds: Bounds, rules: Rules | None = None, sink: Sink = SINK) -> None:
        self.cluster, self.bounds, self.rules, self.sink = cluster, bounds, rules or Rules(), sink
        self.programs = Programs()
        self.kafkas, self.flights, self.drivers, self.tasks = Table(), Table(), Table(), Table()
        self._moves: dict[Any, list[tuple[int, int, Any]]] = {}
        self._kafka_moves: dict[int, list[tuple[str, str, int, Any]]] = {}
        self._checked: dict[Any, str] = {}

    def planning(self, query: int, batch: int, copy: int = OWN) -> Driver:
        """Return a driver at the beginning of a batch."""
        return Driver("plan", query, batch, self.programs.start(self.rules.plan, self.plan(query)), copy=copy)

    def plan(self, query: int) -> Planning:
        """Return the input of a query's plan."""
        wanted = self.bounds.queries[query]
        return Planning(self.sink_of(query), wanted.applicant, wanted.permission)

    def sink_of(self, query: int) -> Sink:
        """Return the sink that a query's options name."""
        return replace(self.sink, prefix=self.bounds.queries[query].prefix)

    def operating(self, phases: Any, phase: str) -> Driver:
        """Return a program of an operator."""
        return Driver(phase, -1, -1, self.programs.start(phases, Planning(self.sink)))

    def task(self, driver: int, query: int, batch: int, carried: Carried, attempt: Attempt, copy: int = OWN) -> Task:
        """Return one attempt of a task."""
        wanted = self.bounds.queries[query]
        source = wanted.source(batch, carried.record.plan, copy)
        tasking = Tasking(self.sink_of(query), carried, source, attempt, wanted.permission, self.rules.name)
        node = self.programs.start(self.rules.task, tasking)
        while isinstance(self.programs.operation[node], op.PeekRows):  # no other program sees this operation
            node = self.programs.advance(node, bool(self._rows(split_of(driver, query, batch, attempt.slot, copy))))
        return Task(driver, query, batch, attempt.slot, node, copy=copy)

    def _rows(self, split: int) -> tuple[tuple[int, Any], ...]:
        """Return (partition, row) of each row that the task with these numbers writes."""
        copy, driver, query, batch, slot = (split // 10**place % 10 for place in (4, 3, 2, 1, 0))
        parts, rows = SPLITS[(driver + self.bounds.split) % len(SPLITS)][slot], rows_of(query, batch, copy)
        return tuple((part, rows[row]) for part, row in parts)

    # The outcomes of a program's operation

    def moves(self, kafka: int, node: int, progress: Any, split: int) -> list[tuple[int, int, Any]]:
        """Yield the outcomes of the operation at this node: (kafka, node, progress)."""
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
        rows = self._rows(split)
        if operation.owner.pid < 0:
            return [model.Step(kafka, op.Rows(op.RequestOutcome.DONE, len(rows), ()))]
        return self.cluster.rows(kafka, operation.owner, rows, progress)

    # The next steps

    def driver_moves(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        if driver.phase == "stage":
            return
        if driver.phase == "log":
            yield f"D{index} logs batch {driver.batch}", self._logged(world, index, driver)
            return
        for kafka, node, progress in self.moves(world.kafka, driver.node, driver.progress, 0):
            after = world.at(kafka)
            moved = driver._replace(node=node, progress=progress)
            operation = self.programs.operation[driver.node]
            if driver.phase == "accept" and isinstance(operation, op.Produce) and progress is None:
                after = self._accept(after, operation.record)
            yield f"D{index} {driver.phase} {self.programs.text[driver.node]}", self.settle_driver(after, index, moved)

    def task_moves(self, world: World, task: Task) -> Iterator[tuple[str, World]]:
        for kafka, node, progress in self.moves(world.kafka, task.node, task.progress, task.split):
            after = self.without_task(world.at(kafka), task)
            label = f"T{task.driver}.{task.batch}.{task.slot} {self.programs.text[task.node]}"
            moved = task._replace(node=node, progress=progress)
            if self.programs.operation[node] is not None:
                yield label, self.with_task(after, moved)
            else:
                yield label, self._task_ended(after, moved)

    # The consequences of a program's end

    def settle_driver(self, world: World, index: int, driver: Driver) -> World:
        """Store the driver, after Spark's immediate reaction to the end of its program."""
        while driver.phase not in ("stage", "log") and self.programs.operation[driver.node] is None:
            result = self.programs.result[driver.node]
            failed = isinstance(result, Exception)
            if driver.phase == "accept" and not failed:
                world = self._accept(world, result.record)
            if driver.phase in ("abort", "settle", "accept") or (failed and driver.phase == "plan"):
                return self.put(world, index, DEAD)
            if failed:
                driver = self.aborting(driver)
            elif driver.phase == "plan":
                return self._stage(world, index, driver, result.carried())
            else:
                driver = driver._replace(phase="log", node=-1, progress=None, results=())
        return self.put(world, index, driver)

    def aborting(self, driver: Driver) -> Driver:
        node = self.programs.start((self._abort,), driver.results)
        return driver._replace(phase="abort", node=node, progress=None)

    def _abort(self, messages: Any) -> Any:
        """Return the phase of an aborting driver. It is always the same, so that equal worlds are equal."""
        yield from self.rules.abort(messages)
        return None

    def _stage(self, world: World, index: int, driver: Driver, carried: Carried) -> World:
        for slot in range(SLOTS):
            attempt = Attempt(slot, 0, driver.batch * SLOTS + slot)
            world = self.with_task(world, self.task(index, driver.query, driver.batch, carried, attempt, driver.copy))
        # The last element of the results keeps the carried state, for attempts that start later.
        stage = Driver("stage", driver.query, driver.batch, -1, carried, (None,) * SLOTS, driver.copy)
        return self.put(world, index, stage)

    def _task_ended(self, world: World, task: Task) -> World:
        driver = self.drivers.values[world.drivers][task.driver]
        if (
            driver is DEAD
            or driver.phase != "stage"
            or driver[1:3] != task[1:3]
            or driver.results[task.slot] is not None
        ):
            return world
        result = self.programs.result[task.node]
        if isinstance(result, Tasking):
            results = (*driver.results[: task.slot], result.message(), *driver.results[task.slot + 1 :])
            if None in results:
                return self.put(world, task.driver, driver._replace(results=results))
            node = self.programs.start(self.rules.commit, Committing(self.sink_of(driver.query), results))
            return self.settle_driver(
                world, task.driver, driver._replace(phase="commit", node=node, progress=None, results=results)
            )
        others = (t for t in self.tasks.values[world.tasks] if t[:4] == task[:4])
        if any(others):
            return world
        return self.settle_driver(world, task.driver, self.aborting(driver))

    def _logged(self, world: World, index: int, driver: Driver) -> World:
        if driver.copy != OWN:
            return self._logged_by_copy(world, index, driver)
        logged = world.committed[driver.query]
        if logged and logged[-1] >= driver.batch:
            return self.put(world, index, DEAD)
        committed = list(world.committed)
        committed[driver.query] = (*logged, driver.batch)
        world = world._replace(committed=tuple(committed))
        following = self.following(world, driver.query)
        return self.put(world, index, DEAD if following is None else self.planning(driver.query, following))

    def _logged_by_copy(self, world: World, index: int, driver: Driver) -> World:
        wanted, batch = self.bounds.queries[driver.query], driver.batch
        if (driver.query, batch, driver.copy) in world.copied:
            return self.put(world, index, DEAD)
        world = world._replace(copied=(*world.copied, (driver.query, batch, driver.copy)))
        more = batch + 1 < wanted.first + self.bounds.batches
        copy = CONTINUED if driver.copy == PLANNED_AGAIN else driver.copy
        return self.put(world, index, self.planning(driver.query, batch + 1, copy) if more else DEAD)

    def following(self, world: World, query: int) -> int | None:
        """Return the batch that a driver starts with, or None if that would exceed the bound."""
        wanted, logged = self.bounds.queries[query], world.committed[query]
        batch = logged[-1] + 1 if logged else wanted.first
        return batch if batch < wanted.first + self.bounds.batches else None

    def _accept(self, world: World, record: Record) -> World:
        """Note a record that accepts the loss of what is not visible now. It counts once it is committed."""
        log = self.kafkas.values[world.kafka].logs[model.DECISION]
        offset = len(log) - 1
        for query, wanted in enumerate(self.bounds.queries):
            if (wanted.kind, wanted.name) == record.source[:2] and log[offset].payload == record:
                batch = (query, record.source.batch)
                rows = tuple(sorted(row for row in self.visible(world.kafka) if row[:2] == batch))
                return world._replace(accepted=(*world.accepted, (offset, batch, rows)))
        return world

    def given_up(self, world: World) -> dict[tuple[int, int], tuple[Any, ...]]:
        """Return (query, batch) whose loss was accepted, and its permanently visible rows."""
        log = self.kafkas.values[world.kafka].logs[model.DECISION]
        done = (a for a in world.accepted if model.first_marker(log, log[a[0]].pid, a[0]) == model.COMMIT)
        return {batch: rows for _, batch, rows in done}

    def visible(self, kafka: int) -> list[Any]:
        """Return the rows that read_committed shows, now or when all earlier transactions have ended."""
        return [row for log in self.kafkas.values[kafka].logs[:2] for row in model.committed(log)]

    def put(self, world: World, index: int, driver: Any) -> World:
        drivers = self.drivers.values[world.drivers]
        return world._replace(drivers=self.drivers((*drivers[:index], driver, *drivers[index + 1 :])))

    def with_task(self, world: World, task: Task) -> World:
        return world._replace(tasks=self.tasks.added(world.tasks, task))

    def without_task(self, world: World, task: Task) -> World:
        return world._replace(tasks=self.tasks.removed(world.tasks, task))

    # Kafka's own steps

    def kafka_only(self, number: int) -> list[tuple[str, str, int, Any]]:
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
            if txn.state == model.ONGOING and not txn.two_phase:
                found.append(("timeout", f"timeout of {name}", self.kafkas(self.cluster.abort(kafka, name)), None))
        moved = self.kafkas(self.cluster.move(kafka))
        if moved != number:
            found.append(("move", "the coordinator moves", moved, None))
        self._kafka_moves[number] = found
        return found
