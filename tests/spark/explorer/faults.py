"""The faults of a world. Each costs one of a bounded number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.finish import check_prepared
from oncelog.spark.commit.names import Attempt
from oncelog.spark.commit.ownership import NO_PERMISSION
from oncelog.spark.commit.plan import admit_applicant
from oncelog.spark.commit.record import STREAM, Owner, Part, Record
from oncelog.spark.commit.task import Prepared, abandon
from spark.explorer import kafka as model
from spark.explorer.moves import Moves
from spark.explorer.worlds import DEAD, KINDS, PLANNED_AGAIN, RENAMED, SLOTS, Driver, Task, World


class Faults(Moves):
    """The transitions between worlds that are faults, and Kafka's own, some of which are."""

    def coordinator_moves(self, world: World) -> Iterator[tuple[str, World]]:
        """Markers arrive or are lost, transactions time out, the coordinator moves."""
        for kind, label, kafka, copy in self.kafka_only(world.kafka):
            if kind == "timeout" and self._past_check(world):
                kind = "late"
            if kind == "":
                yield label, world.at(kafka)
            elif (spent := self._spend(world, kind)) is not None:
                torn = kind == "late" and not self.sink.two_phase
                after = spent._replace(kafka=kafka, late=world.late or torn)
                yield label, after if copy is None else self._fly(after, copy)

    def _past_check(self, world: World) -> bool:
        """Return whether a commit is decided, or C1b has checked already.

        From then on, a timeout may tear the batch, loudly.
        """
        kafka = self.kafkas.values[world.kafka]
        log = kafka.logs[model.DECISION]
        opened = model.open_since(log)
        # Also decided is what the coordinator has started to commit: its marker may follow later.
        coming = [txn.pid for _, txn in kafka.txns if txn.state == model.PREPARE_COMMIT and txn.pid in opened]
        begun = [e.payload for pid in coming for e in log[opened[pid] :] if e.pid == pid]
        records = [*model.decided(log), *(message for message in begun if isinstance(message, Record))]
        if records and not records[-1].settled:
            return True
        for driver in self.drivers.values[world.drivers]:
            if driver is not DEAD and driver.phase == "commit":
                operation = self.programs.operation[driver.node]
                looks = isinstance(operation, op.ListTransactions | op.DescribeTransactions)
                if not looks or self.programs.has_passed(driver.node, check_prepared):
                    return True
        return False

    def _spend(self, world: World, kind: str) -> World | None:
        place = KINDS.index(kind) + 1
        budget = world.budget
        if budget[0] == 0 or budget[place] == 0:
            return None
        after = list(budget)
        after[0] -= 1
        after[place] -= 1
        # Counts above the remaining total are equivalent, and are merged.
        return world._replace(budget=tuple(min(b, after[0]) if i else b for i, b in enumerate(after)))

    def _fly(self, world: World, item: Any) -> World:
        return world._replace(flight=self.flights.added(world.flight, item))

    def land(self, number: int, item: Any) -> int | None:
        kafka = self.kafkas.values[number]
        if isinstance(item, op.EndTxn):
            result = self.cluster.end(kafka, item.owner, item.commit)
            return None if result is None else self.kafkas(result[0])
        if isinstance(item, op.WriteTxnMarkers):
            # A copy from the coordinator. The new protocol rejects one whose epoch it already has.
            part = model.INDEX[item.at]
            after = self.cluster.marker(kafka, part, item.pid, item.epoch, commit=item.commit, strict=self.cluster.new)
            return number if after is None else self.kafkas(after)
        steps = self.cluster.apply(kafka, item, None)
        return self.kafkas(steps[0].kafka) if steps else None

    def faults(self, world: World) -> Iterator[tuple[str, World]]:
        """Yield the possible faults, as long as some are left."""
        drivers, tasks = self.drivers.values[world.drivers], self.tasks.values[world.tasks]
        yield from self._arrivals(world, drivers)
        for index, driver in enumerate(drivers):
            if driver is not DEAD:
                yield from self._driver_faults(world, index, driver)
        for task in tasks:
            yield from self._task_faults(world, task)
        yield from self._cuts(world)
        if (spent := self._spend(world, "remake")) is not None:
            kafka = self.cluster.remake(self.kafkas.values[world.kafka])
            yield "the output topic is created again", spent._replace(kafka=self.kafkas(kafka))
        if (spent := self._spend(world, "compact")) is not None:
            kafka = self.cluster.compact(self.kafkas.values[world.kafka])
            yield "the decision topic is compacted", spent._replace(kafka=self.kafkas(kafka))

    def _cuts(self, world: World) -> Iterator[tuple[str, World]]:
        """Cut only rows that belong to no batch. No sink can cure a log that has lost the rows of a batch."""
        spent = self._spend(world, "cut")
        if spent is None:
            return
        kafka = self.kafkas.values[world.kafka]
        needed = self._needed(world, kafka)
        for part, log in enumerate(kafka.logs[: model.DECISION]):
            if log and log[-1].kind == model.DATA and log[-1].pid not in needed:
                yield (
                    f"partition {part} loses its last row",
                    spent._replace(kafka=self.kafkas(self.cluster.cut(kafka, part))),
                )

    def _needed(self, world: World, kafka: model.Kafka) -> set[int]:
        """Return the producer ids of transactions that a driver may commit, or that a task still writes."""
        written = [entry.payload for entry in kafka.logs[model.DECISION]]
        transactions = [t for m in written if isinstance(m, Record | Part) for t in m.transactions]
        for driver in self.drivers.values[world.drivers]:
            if driver is not DEAD:
                transactions += [m.transaction for m in driver.results if isinstance(m, Prepared) and m.transaction]
        tasks = (self.programs.operation[task.node] for task in self.tasks.values[world.tasks])
        writing = {operation.owner.pid for operation in tasks if isinstance(operation, op.ProduceRows)}
        return writing | {transaction.owner.pid for transaction in transactions}

    def _arrivals(self, world: World, drivers: Any) -> Iterator[tuple[str, World]]:
        """Yield the drivers that may start: (kind, what happened, the driver, the world)."""
        for query, logged in enumerate(world.committed):
            wanted, following = self.bounds.queries[query], self.following(world, query)
            if not wanted.repeats:
                continue
            if logged:
                old = partial(self.planning, query, wanted.first)
                yield from self._arrive(world, drivers, "rewind", f"of {wanted.name} with an old checkpoint", old)
            if following is None:
                continue
            if wanted.kind == STREAM and wanted.permission == NO_PERMISSION:
                yield from self._copied_checkpoints(world, drivers, query, following)
            new = partial(self.planning, query, following)
            yield from self._arrive(world, drivers, "driver", f"of {wanted.name}", new)
            if following + 1 < wanted.first + self.bounds.batches:
                committed = (*world.committed[:query], (*logged, following), *world.committed[query + 1 :])
                leapt = world._replace(committed=committed, leapt=(*world.leapt, (query, following)))
                ahead = partial(self.planning, query, following + 1)
                yield from self._arrive(leapt, drivers, "leap", f"of {wanted.name}, a batch ahead", ahead)
        if len(world.committed) < len(self.bounds.queries):
            query = len(world.committed)
            wanted = self.bounds.queries[query]
            begun = world._replace(committed=(*world.committed, ()))
            other = partial(self.planning, query, wanted.first)
            yield from self._arrive(begun, drivers, "other", f"of {wanted.name}", other)
        yield from self._arrive(world, drivers, "settle", "", partial(self.operating, self.rules.plan, "settle"))
        # If these end halfway, they leave a torn batch, loudly, and must be run again.
        late = world._replace(late=True)
        yield from self._arrive(late, drivers, "undo", "", partial(self.operating, self.rules.undo, "settle"))
        yield from self._arrive(late, drivers, "accept", "", partial(self.operating, self.rules.accept, "accept"))

    def _copied_checkpoints(
        self, world: World, drivers: Any, query: int, following: int
    ) -> Iterator[tuple[str, World]]:
        wanted = self.bounds.queries[query]
        for batch in range(wanted.first, following + 1):
            for kind, copy in (("older", PLANNED_AGAIN), ("renamed", RENAMED)):
                what = f"copy of the checkpoint of {wanted.name} at batch {batch}"
                yield from self._arrive(world, drivers, kind, what, partial(self.planning, query, batch, copy))

    def _arrive(
        self, world: World, drivers: Any, kind: str, what: str, who: Callable[[], Driver]
    ) -> Iterator[tuple[str, World]]:
        spent = self._spend(world, kind)
        if spent is not None:
            arrived = self.drivers((*drivers, who()))
            yield f"D{len(drivers)} starts: {kind} {what}", spent._replace(drivers=arrived)

    def _driver_faults(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        if driver.phase == "stage":
            spent = self._spend(world, "twin")
            for slot in range(SLOTS):
                if spent is not None and driver.results[slot] is None:
                    for number in (0, 1):
                        attempt = Attempt(slot, number, 5 + slot)
                        task = self.task(index, driver.query, driver.batch, driver.progress, attempt, driver.copy)
                        yield f"twin {attempt} of D{index}", self.with_task(spent, task)
            spent = self._spend(world, "stage")
            if spent is not None:
                yield f"stage of D{index} fails", self.settle_driver(spent, index, self.aborting(driver))
            return
        if driver.node >= 0:
            yield from self._copies(world, driver.node, driver.progress)
            yield from self._slow(world, index, driver)
            yield from self._denied(world, index, driver)
            yield from self._hidden(world, index, driver)
            yield from self._rejected(world, index, driver)
            for answer, after in self._stale(world, driver.node, driver.progress):
                moved = driver._replace(node=self.programs.advance(driver.node, answer))
                yield f"D{index} sees an older high watermark: {answer}", self.settle_driver(after, index, moved)

    def _stale(self, world: World, node: int, progress: Any) -> Iterator[tuple[Any, World]]:
        """Answer with logs that lack their last entries: (answer, world)."""
        operation = self.programs.operation[node]
        spent = self._spend(world, "stale") if progress is None else None
        if spent is None:
            return
        kafka = self.kafkas.values[world.kafka]
        log, least = kafka.logs[model.DECISION], len(kafka.logs[model.DECISION])
        if isinstance(operation, op.FindEnds):
            least -= 1
        elif isinstance(operation, op.ReadDecisions) and operation.since is not None:
            least = operation.since + 2  # K1's shell has read its plan's record and the marker
        elif self.programs.within(node, admit_applicant):
            least = 0
        for end in range(least, len(log)):
            short = tuple(part[:-1] for part in kafka.logs[: model.DECISION])
            (step, *_) = self.cluster.apply(kafka._replace(logs=(*short, log[:end])), operation, None)
            if step.progress is None:
                yield step.answer, spent

    def _denied(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[driver.node]
        spent = self._spend(world, "deny") if isinstance(operation, op.WriteTxnMarkers) else None
        if spent is not None:
            moved = driver._replace(node=self.programs.advance(driver.node, op.RequestOutcome.DENIED))
            yield f"D{index} may not do {operation}", self.settle_driver(spent, index, moved)

    def _rejected(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[driver.node]
        spent = self._spend(world, "reject") if isinstance(operation, op.Produce) else None
        if spent is not None and driver.progress is None:
            answer = op.Produced(op.RequestOutcome.TOO_LARGE)
            moved = driver._replace(node=self.programs.advance(driver.node, answer))
            yield f"D{index} may not write {operation}", self.settle_driver(spent, index, moved)

    def _hidden(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        if not isinstance(self.programs.operation[driver.node], op.ListTransactions):
            return
        spent = self._spend(world, "hide")
        listed = [name for name, _ in self.kafkas.values[world.kafka].txns if "/" in name]
        if spent is None or driver.progress is not None:
            return
        for name in listed:
            kafka = self.kafkas.values[world.kafka]
            seen = kafka._replace(txns=tuple(entry for entry in kafka.txns if entry[0] != name))
            answer = self.cluster.listed(seen, self.sink.prefix)
            moved = driver._replace(node=self.programs.advance(driver.node, answer))
            yield f"D{index} lists all but {name}", self.settle_driver(spent, index, moved)

    def _slow(self, world: World, index: int, driver: Driver) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[driver.node]
        waits = isinstance(operation, op.FindMarkers | op.AwaitEnded)
        spent = self._spend(world, "slow") if waits else None
        if spent is None or self.moves(world.kafka, driver.node, driver.progress, 0):
            return
        if isinstance(operation, op.AwaitEnded):
            # The shell's time runs out and it raises: after a failed commit, Spark calls abort.
            failed = self.aborting(driver) if driver.phase == "commit" else None
            after = self.put(spent, index, DEAD) if failed is None else self.settle_driver(spent, index, failed)
            yield f"D{index} waits too briefly for an end", after
            return
        assert isinstance(operation, op.FindMarkers)
        kafka = self.kafkas.values[world.kafka]
        kinds = {None: op.Marker.MISSING, model.COMMIT: op.Marker.COMMIT, model.ABORT: op.Marker.ABORT}
        answer = tuple(
            kinds[model.first_marker(kafka.logs[model.INDEX[p.at]], p.producer_id, p.after)] for p in operation.places
        )
        moved = driver._replace(node=self.programs.advance(driver.node, answer), progress=None)
        yield f"D{index} looks for markers too briefly", self.settle_driver(spent, index, moved)

    def _task_faults(self, world: World, task: Task) -> Iterator[tuple[str, World]]:
        operation = self.programs.operation[task.node]
        for label, after in self._copies(world, task.node, task.progress):
            lost = isinstance(operation, op.InitProducerId) and operation.once
            # Without an answer, the task continues; the copy of its request arrives at any time, or never.
            yield label, self._answered(after, task, None) if lost else after
        for answer, after in self._stale(world, task.node, task.progress):
            yield f"T{task[:4]} sees an older high watermark: {answer}", self._answered(after, task, answer)
        if isinstance(operation, op.ProduceRows) and operation.owner.pid >= 0:
            spent = self._spend(world, "kill")
            if spent is not None:
                dying = task._replace(node=self.programs.start((_abandon,), operation.owner), progress=None, batch=-1)
                yield f"T{task[:4]} is killed", self.with_task(self.without_task(spent, task), dying)

    def _answered(self, world: World, task: Task, answer: Any) -> World:
        """Give the task an answer that no operation of the model returns."""
        moved = task._replace(node=self.programs.advance(task.node, answer), progress=None)
        without = self.without_task(world, task)
        if self.programs.operation[moved.node] is None:
            return self._task_ended(without, moved)
        return self.with_task(without, moved)

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


def _abandon(owner: Owner) -> Any:
    yield from abandon(owner)
    return owner
