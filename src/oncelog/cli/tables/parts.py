"""A folder with the exported parts of a topic. The names of complete parts say where the next run continues."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import oncelog.columns  # noqa: F401 first: its error names the missing extra

# isort: split
import click
import pyarrow as pa

from oncelog.cli.tables.outputs import UNFINISHED, OpenOutput, lock, open_output, sync_folder

STATE, LOCK = "export.json", ".lock"
VERSION = 1


class Part(NamedTuple):
    """A file with the records of a partition from offset `first` up to, but not including, `end`."""

    partition: int
    first: int
    end: int

    def name(self, topic: str, form: str) -> str:
        """Return the name of the file."""
        return f"{topic}-{self.partition}-{self.first:020}-{self.end:020}.{form}"


class Exported(NamedTuple):
    """What all runs into a folder have in common. The first run stores it."""

    topic: str
    topic_id: str
    file_format: str
    value_format: str
    key_format: str
    keep_bad: bool
    isolation: str


class Folder:
    """A folder of parts. `kind` is the type of JSON values that earlier runs have found, or None.

    No other process can write to it until `close`.
    """

    def __init__(self, path: str, wanted: Exported) -> None:
        """Create the folder, or read what it has. Raises ClickException if that is another export."""
        self.path = path
        self._wanted = wanted
        self.kind: pa.DataType | None = None
        os.makedirs(path, exist_ok=True)
        self._lock = open(os.path.join(path, LOCK), "w")  # noqa: SIM115 - `close` closes it
        try:
            lock(self._lock, path)
            self._continue()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    def _continue(self) -> None:
        """Read what an earlier run has stored, or store what this one is."""
        path, wanted = self.path, self._wanted
        state = self._read()
        if state is None:
            if self.parts():
                raise click.ClickException(f"{path} has parts, but no {STATE}; export to another folder")
            self.store(None)
            return
        for field, value in wanted._asdict().items():
            if state.get(field) != value:
                raise click.ClickException(
                    f"{path} has another export: its {field.replace('_', ' ')} is {state.get(field)!r}, not {value!r}; "
                    "export to another folder"
                )
        if state.get("kind") is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(state["kind"])))
            self.kind = schema.field(0).type

    def _read(self) -> dict[str, Any] | None:
        path = os.path.join(self.path, STATE)
        try:
            with open(path, encoding="utf-8") as stream:
                found = json.load(stream)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise click.ClickException(f"{path} is damaged: {error}; export to another folder") from None
        if not isinstance(found, dict) or found.get("v") != VERSION:
            raise click.ClickException(f"{path} is of another version; export to another folder")
        return found

    def store(self, kind: pa.DataType | None) -> None:
        """Store what this export is, before its first part, and the type of JSON values."""
        text = None
        if kind is not None:
            text = base64.b64encode(pa.schema([("value", kind)]).serialize().to_pybytes()).decode()
        path = os.path.join(self.path, STATE)
        with open(path + UNFINISHED, "w", encoding="utf-8") as stream:
            json.dump({"v": VERSION, **self._wanted._asdict(), "kind": text}, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(path + UNFINISHED, path)
        sync_folder(path)
        self.kind = kind

    def parts(self) -> list[Part]:
        """Return the complete parts, in order. Raises ClickException if two of them have the same records."""
        name = re.compile(rf"{re.escape(self._wanted.topic)}-(\d+)-(\d{{20}})-(\d{{20}})\.\w+")
        found = sorted(
            Part(*map(int, each.groups())) for each in map(name.fullmatch, os.listdir(self.path)) if each is not None
        )
        for before, after in pairwise(found):
            if before.partition == after.partition and after.first < before.end:
                raise click.ClickException(
                    f"{self.path} has two parts with offset {after.first} of partition {after.partition}; export to "
                    "another folder"
                )
        return found

    def ends(self) -> dict[int, int]:
        """Return for each partition with parts the offset at which the last one ends."""
        return {part.partition: part.end for part in self.parts()}

    @contextmanager
    def write_part(self, schema: pa.Schema) -> Iterator[NewPart]:
        """Yield a part to write. The block sets its `part`, and at its end the file gets that name."""
        form = self._wanted.file_format
        with open_output(os.path.join(self.path, f"{self._wanted.topic}.{form}"), form, schema) as output:
            made = NewPart(output)
            yield made
            assert made.part is not None
            output.path = self.path_of(made.part)

    def path_of(self, part: Part) -> str:
        """Return the path of a part."""
        return os.path.join(self.path, part.name(self._wanted.topic, self._wanted.file_format))


class NewPart:
    """A part that is being written."""

    def __init__(self, output: OpenOutput) -> None:
        self.write = output.write
        self.part: Part | None = None
