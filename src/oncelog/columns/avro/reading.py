"""Read Avro values into Arrow columns, with the kernel `avro_read`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from oncelog.columns.avro import operations as op
from oncelog.columns.avro.buffers import Buffers
from oncelog.columns.avro.programs import Columns, ResolutionError, program
from oncelog.columns.avro.schemas import Node, column_type
from oncelog.columns.native import kernel
from oncelog.columns.signatures import at
from oncelog.columns.values import Bad, bits
from oncelog.protocol.schema_ids import FRAME, MAGIC


class Run(NamedTuple):
    """Rows whose values have one schema: `skip` is the bytes before each datum. Without a writer, they are all bad."""

    first: int
    last: int
    skip: int
    writer: Node | None
    reason: str = ""


class Reader:
    """Reads values into columns of the type of `node`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.type = column_type(node)
        self._columns = Columns(self.type)
        self._programs: dict[Node, tuple[Any, ...]] = {}

    def _program(self, writer: Node) -> tuple[Any, ...]:
        """Return the code, the tables and the pool of a writer's program, and its step for a null."""
        found = self._programs.get(writer)
        if found is None:
            made = program(writer, self.node, self._columns)
            found = self._programs[writer] = (*made.arrays(), made.null_step)
        return found

    def read(self, column: Encoded, runs: Iterable[Run], *, keep_bad: bool) -> tuple[pa.Array, list[Bad]]:
        """Return the values of the runs, which follow each other, and the bad ones. See `Format.decode`.

        Rows after the last run are null. `column.valid` is changed.
        """
        buffers = Buffers(self._columns, column.rows, int(column.ends[-1] - column.ends[0]))
        bad: list[Bad] = []
        done = 0
        for run in runs:
            self._read(buffers, column, run, bad, keep_bad)
            done = run.last
            if bad and not keep_bad:
                break
        if done < column.rows:
            column.valid[done:] = 0
            self._read(buffers, column, Run(done, column.rows, 0, self.node), bad, keep_bad)
        return buffers.array(), bad if keep_bad else bad[:1]

    def _read(self, buffers: Buffers, column: Encoded, run: Run, bad: list[Bad], keep_bad: bool) -> None:
        """Append the rows of a run. Add bad ones to `bad`."""
        try:
            steps = self._program(self.node if run.writer is None else run.writer)
        except (ResolutionError, RecursionError) as error:
            run, steps = run._replace(writer=None, reason=str(error)), self._program(self.node)
        if run.writer is None:
            rows = column.valid_rows(run)
            bad += [Bad(row, run.reason) for row in rows]
            column.valid[rows] = 0
        self._run(buffers, column, run, steps, bad, keep_bad)

    def _run(
        self, buffers: Buffers, column: Encoded, run: Run, steps: tuple[Any, ...], bad: list[Bad], keep_bad: bool
    ) -> None:
        code, tables, pool, null_step = steps
        saved, stack = np.empty_like(buffers.lengths), np.empty(op.MOST_DEPTH, np.int64)
        result = np.zeros(2, np.int64)
        first = run.first
        while True:
            status = kernel("avro_read")(
                *at("q", code), *at("q", tables), *at("B", pool), *at("q", buffers.described),
                *at("q", buffers.lengths), *at("q", saved), *at("B", column.data), *at("q", column.ends),
                *at("B", column.valid), first, run.last, run.skip, null_step, *at("q", stack), *at("q", result),
            )  # fmt: skip
            if status == op.OK:
                return
            first, number = (int(found) for found in result)
            if status in (op.FULL, op.FULL_DATA):
                buffers.grow(number, data=status == op.FULL_DATA)
                continue
            bad.append(Bad(first, op.REASONS[status].format(number)))
            column.valid[first : first + 1 if keep_bad else run.last] = 0


class Encoded:
    """A binary column as the kernel reads it. Rows with `valid` 0 are null."""

    def __init__(self, values: pa.Array) -> None:
        self.rows = len(values)
        valid, ends, data = values.buffers()
        wide = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        found = np.frombuffer(ends, wide)[values.offset : values.offset + self.rows + 1]
        self.ends = found.astype(np.int64) if len(found) else np.zeros(1, np.int64)
        self.data = np.zeros(1, np.uint8) if data is None or not data.size else np.frombuffer(data, np.uint8)
        self.valid = bits(valid, values)

    def valid_rows(self, run: Run) -> list[int]:
        """Return the rows of a run that are not null."""
        return [run.first + int(row) for row in np.flatnonzero(self.valid[run.first : run.last])]

    def schema_ids(self, headers: pa.Array | None) -> Iterator[tuple[int, int, int | bytes]]:
        """Yield rows in order as (first, last + 1, id in their frames), or -1 for rows without a frame.

        If a row has a header with an id, the id is the header's bytes. A null belongs to the rows before it.
        """
        starts, sizes = self.ends[:-1], np.diff(self.ends)
        framed = (self.valid != 0) & (sizes >= FRAME)
        framed[framed] = self.data[starts[framed]] == MAGIC
        ids = np.full(self.rows, -1, np.int64)
        at_ids = starts[framed] + 1
        ids[framed] = 0
        for place in range(FRAME - 1):
            ids[framed] = ids[framed] << 8 | self.data[at_ids + place]
        distinct: list[bytes] = []
        if headers is not None:
            coded = headers.dictionary_encode()
            distinct = coded.dictionary.to_pylist()
            numbers = np.frombuffer(coded.indices.fill_null(-1).buffers()[1], np.int32)[: self.rows]
            ids = np.where(numbers >= 0, -2 - numbers.astype(np.int64), ids)
        some = np.flatnonzero(self.valid)
        if not len(some):
            return
        cuts = some[1:][np.diff(ids[some]) != 0]
        firsts = [0, *cuts.tolist()]
        for first, last in zip(firsts, [*firsts[1:], self.rows], strict=True):
            found = int(ids[some[0] if first == 0 else first])
            yield first, last, found if found >= -1 else distinct[-2 - found]
