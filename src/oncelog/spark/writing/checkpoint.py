"""What the driver reads in a streaming query's checkpoint, if it is in a local or mounted folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec


class Planned(NamedTuple):
    """The newest batch of a checkpoint, and a digest of its offsets. The digest is "" if it cannot be read here."""

    batch: int = -1
    offsets: str = ""


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

    Spark writes `offsets/N` before it plans batch N, and reads it again for a replay. The first line is the version of
    the file, the second has time, watermark and settings, and each further line is the end of the batch in one source.
    The beginning is the end of the batch before. Both decide which rows the batch has, so both are in the digest. The
    second line is not: if a checkpoint plans a batch again with the same offsets, the batch has the same rows.
    """
    folder = _folder(checkpoint)
    if folder is None:
        return Planned()
    try:
        numbers = [int(file.name) for file in (folder / "offsets").iterdir() if file.name.isdecimal()]
        newest = max(numbers, default=-1)
        if newest < 0:
            return Planned()
        digest = hashlib.sha256(_sources(folder, newest))
        if newest > 0:
            digest.update(b"\n\n" + _sources(folder, newest - 1))
    except OSError:
        return Planned()
    return Planned(newest, digest.hexdigest()[:32])


def _sources(folder: Path, batch: int) -> bytes:
    """Return the lines of `offsets/BATCH` that have the sources' offsets."""
    return b"\n".join((folder / "offsets" / str(batch)).read_bytes().splitlines()[2:])


def _folder(checkpoint: str) -> Path | None:
    """Return the folder of a checkpoint, or None if it is in another file system."""
    scheme, colon, path = checkpoint.rpartition(":")
    return None if not path or (colon and scheme != "file") else Path(path)
