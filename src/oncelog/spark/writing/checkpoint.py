"""What the driver reads in a streaming query's checkpoint, if it is in a local or mounted folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec


class Planned(NamedTuple):
    """The newest batch of a checkpoint, and digests of its start and end.

    `start` is "" for batch 0. A digest is also "" if its file cannot be read here.
    """

    batch: int = -1
    start: str = ""
    end: str = ""


class _StreamMetadata(msgspec.Struct):
    id: str


def query_id(checkpoint: str) -> str:
    """Return the query id that Spark keeps in a local checkpoint, or "" if it cannot be read here."""
    folder = _folder(checkpoint)
    if folder is None:
        return ""
    try:
        return msgspec.json.decode((folder / "metadata").read_bytes(), type=_StreamMetadata).id
    except (OSError, msgspec.DecodeError):
        return ""


def planned(checkpoint: str) -> Planned:
    """Return the newest batch whose offsets Spark has stored in a local checkpoint.

    Spark writes `offsets/N` before it plans batch N, never changes the file, and reads it again for a replay. The file
    has the end of the batch. The start is the end of the batch before, so batch N + 1 begins where `offsets/N` says.
    Spark keeps that file at least as long as N + 1 is the newest batch.
    """
    folder = _folder(checkpoint)
    if folder is None:
        return Planned()
    try:
        numbers = [int(file.name) for file in (folder / "offsets").iterdir() if file.name.isdecimal()]
    except OSError:
        return Planned()
    newest = max(numbers, default=-1)
    end = _digest(folder, newest)
    return Planned(newest, _digest(folder, newest - 1), end) if end else Planned()


def _digest(folder: Path, batch: int) -> str:
    """Return a digest of the lines of `offsets/BATCH` that have the sources' offsets, or "" if it cannot be read.

    The first line is the version of the file. The second has time, watermark and settings. It is not in the digest: if
    a checkpoint plans a batch again with the same offsets, the batch has the same rows.
    """
    try:
        lines = (folder / "offsets" / str(batch)).read_bytes().splitlines()[2:]
    except OSError:
        return ""
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:32]


def _folder(checkpoint: str) -> Path | None:
    """Return the folder of a checkpoint, or None if it is in another file system."""
    scheme, colon, path = checkpoint.rpartition(":")
    return None if not path or (colon and scheme != "file") else Path(path)
