"""The invariants of every world, and of a recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oncelog.spark.commit.finish import Committing
from oncelog.spark.commit.names import Attempt
from oncelog.spark.commit.plan import Planning
from oncelog.spark.commit.record import STREAM
from spark.explorer import kafka as model
from spark.explorer.faults import Faults
from spark.explorer.worlds import DEAD, KINDS, OWN, ROWS, SLOTS, World, rows_of, split_of


class Judge(Faults):
    """Invariants: every acknowledged batch is present once and whole; a new driver alone completes everything."""

    def check(self, world: World) -> str:
        """Return the violated invariant, or an empty string."""
        if self.bounds.untouched and (stopped := self._stopped(world)):
            return stopped
        key = (world.kafka, world.committed, world.accepted, world.leapt, world.copied)
        known = self._checked.get(key)
        if known is None:
            known = self._checked[key] = self._check(world)
        return known

    def _stopped(self, world: World) -> str:
        first = self.drivers.values[world.drivers][0]
        failed = first.phase == "abort" if first is not DEAD else len(world.committed[0]) < self.bounds.batches
        return f"stopped: the first driver, at {world.committed[0]}" if failed else ""

    def _check(self, world: World) -> str:
        rows = self.visible(world.kafka)
        if len(rows) != len(set(rows)):
            return f"doubled: {sorted(rows)}"
        if self.kafkas.values[world.kafka].made > 1:
            return ""  # the rows were deleted with their topic
        given_up = self.given_up(world)
        for batch, accepted in given_up.items():
            now = tuple(sorted(row for row in rows if row[:2] == batch))
            if now != accepted:
                return f"changed: {accepted} of {batch} was visible when its loss was accepted, now {now}"
        there = set(rows)
        for query, logged in enumerate(world.committed):
            wanted = self.bounds.queries[query]
            allowed = wanted.kind != STREAM or wanted.permission.adopt_checkpoint
            for batch in logged:
                lost = {(query, batch, row) for row in range(ROWS)} - there
                leapt = (query, batch) in world.leapt and (allowed or batch == logged[-1])
                if lost and not leapt and (query, batch) not in given_up:
                    return f"lost: {sorted(lost)} although {logged} is in the commit log"
        for query, batch, copy in world.copied:
            missing = set(rows_of(query, batch, copy)) - there
            if missing and (query, batch) not in given_up:
                return f"lost: {sorted(missing)} although a copy has batch {batch} in its commit log"
        return ""

    # Recovery

    def recover(self, world: World) -> str:
        """Stop everything else, deliver the markers, and run a new driver to its end: all rows once, nothing left
        open.
        """
        for query in self._still_running(world):
            world, error = self._run_query(world, query)
            if error == "TornBatchError" and world.late:
                return ""
            if error and not (error == "MisuseError" and self._may_be_refused(world, query)):
                return f"stuck: a new driver fails with {error}"
        return self._settle(world)

    def _still_running(self, world: World) -> list[int]:
        """Return the queries that run again.

        A query with takeOver claims that the others never run again. The claim is wrong if all queries make it. Writes
        without a name are not repeated.
        """
        queries = self.bounds.queries[: len(world.committed)]
        takers = [number for number, query in enumerate(queries) if query.permission.take_over]
        running = takers[-1:] if 0 < len(takers) < len(queries) else range(len(queries))
        return [number for number in running if queries[number].repeats]

    def _may_be_refused(self, world: World, query: int) -> bool:
        """Return whether another query uses this prefix, or a checkpoint is ahead, and no option permits it."""
        permission = self.bounds.queries[query].permission
        crowded = (len(world.committed) > 1 or self._copied(world)) and not permission.take_over
        ahead = self.bounds.queries[query].first > 0 or query in dict(world.leapt)
        return crowded or (ahead and not permission.adopt_checkpoint)

    def _copied(self, world: World) -> bool:
        """Return whether a driver with a copy of a checkpoint has started."""
        places = [KINDS.index(kind) + 1 for kind in ("older", "renamed")]
        spent = any(world.budget[place] < self.bounds.budget()[place] for place in places)
        return spent or self.bounds.copy != OWN

    def _run_query(self, world: World, query: int) -> tuple[World, str]:
        error = ""
        for _ in range(self.bounds.batches + 2):
            batch = self.following(world, query)
            if batch is None:
                return world, ""
            number, error = self._run_batch(world.kafka, query, batch)
            world = world._replace(kafka=number)
            if not error:
                committed = list(world.committed)
                committed[query] = (*committed[query], batch)
                world = world._replace(committed=tuple(committed))
        return world, error

    def _run_batch(self, number: int, query: int, batch: int) -> tuple[int, str]:
        number, planned = self._alone(number, self.programs.start(self.rules.plan, self.plan(query)), 0)
        messages: list[Any] = []
        for slot in range(SLOTS):
            if isinstance(planned, Exception):
                return number, type(planned).__name__
            task = self.task(1, query, batch, planned.carried(), Attempt(slot, 0, slot))
            number, result = self._alone(number, task.node, split_of(1, query, batch, slot))
            if isinstance(result, Exception):
                return number, type(result).__name__
            messages.append(result.message())
        node = self.programs.start(self.rules.commit, Committing(self.sink_of(query), tuple(messages)))
        number, result = self._alone(number, node, 0)
        return number, type(result).__name__ if isinstance(result, Exception) else ""

    def _settle(self, world: World) -> str:
        number, prefixes = world.kafka, dict.fromkeys(query.prefix for query in self.bounds.queries)
        for prefix in prefixes:
            planning = Planning(replace(self.sink, prefix=prefix))
            number, result = self._alone(number, self.programs.start(self.rules.plan, planning), 0)
            if isinstance(result, Exception):
                error = type(result).__name__
                if error == "TornBatchError" and world.late:
                    return ""
                if error != "MisuseError" or prefix == self.sink.prefix:
                    return f"stuck: settle of {prefix} fails with {error}"
        kafka = self.kafkas.values[number]
        left = [name for name, txn in kafka.txns if txn.state == model.ONGOING and "/" in name]
        hanging = [pid for log in kafka.logs for pid in model.open_since(log)]
        if left or hanging:
            return f"left open after settle: {left} {hanging}"
        rows = self.visible(number)
        torn = {row[:2] for row in rows if sum(other[:2] == row[:2] for other in rows) != ROWS}
        torn -= set(self.given_up(world._replace(kafka=number)))
        if torn and kafka.made == 1:
            return f"torn: of {sorted(torn)} only a part is there"
        return self.check(world._replace(kafka=number))

    def _alone(self, number: int, node: int, split: int) -> tuple[int, Any]:
        progress: Any = None
        while True:
            number = self._all_markers(number)
            if self.programs.operation[node] is None:
                return number, self.programs.result[node]
            number, node, progress = self.moves(number, node, progress, split)[0]

    def _all_markers(self, number: int) -> int:
        while plain := [m for m in self.kafka_only(number) if m[0] == ""]:
            number = plain[0][2]
        return number
