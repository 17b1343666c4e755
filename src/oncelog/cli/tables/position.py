"""How far a run of `oncelog topic produce --once NAME` has got: the position that it commits with its records.

The position is the offset of a group, and what identifies the run is the metadata of that offset. Each transaction
commits records and position together, so the brokers have both or none, whenever the process dies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from oncelog.client.group_offsets import OffsetAndMetadata

VERSION = 1
STEM = "oncelog-produce-"


def run_id(name: str) -> str:
    """Return the group id and transactional id of the runs with this name."""
    return STEM + name


class Run(NamedTuple):
    """What two runs of a name must have in common, so that the second one can continue the first."""

    file: str
    size: int
    sha256: str
    rows: int
    topic_id: str
    options: str
    """A digest of the options that decide what becomes of a row."""

    def at(self, row: int) -> OffsetAndMetadata:
        """Return the offset to commit after the first `row` rows."""
        return OffsetAndMetadata(row, metadata=json.dumps({"v": VERSION, **self._asdict()}, separators=(",", ":")))


def digest_of(options: Mapping[str, Any]) -> str:
    """Return the digest of options whose values JSON can represent."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:32]


def rows_sent(name: str, run: Run, found: OffsetAndMetadata | None) -> int:
    """Return how many rows of the file earlier runs with this name have sent.

    Raises ClickException if they have sent another file, sent it differently, or to a topic that was deleted since.
    """
    if found is None:
        return 0
    other = f"use another name than {name!r}, or delete group {run_id(name)!r} to send everything again"
    try:
        stored = json.loads(found.metadata)
        before = Run(**{field: stored[field] for field in Run._fields})
        version = stored["v"]
    except (ValueError, KeyError, TypeError):
        version = None
    if version != VERSION:
        raise click.ClickException(f"group {run_id(name)!r} has offsets of another program or version; {other}")
    if before.topic_id != run.topic_id:
        raise click.ClickException(f"the topic was deleted since {name!r} has sent {before.file} to it; {other}")
    if (before.sha256, before.size) != (run.sha256, run.size):
        what = "has changed" if before.file == run.file else f"is not {before.file}"
        raise click.ClickException(
            f"{run.file} {what}, of which {name!r} has sent {int(found)} of {before.rows} rows; {other}"
        )
    if before.options != run.options:
        raise click.ClickException(
            f"{name!r} has sent {int(found)} of {before.rows} rows of {run.file} with other options or another schema; "
            f"give the same ones, or {other}"
        )
    if not 0 <= found <= run.rows:
        raise click.ClickException(f"{name!r} has sent {int(found)} rows, but {run.file} has {run.rows}; {other}")
    return int(found)
