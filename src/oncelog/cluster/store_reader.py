"""Read a node of a metadata store without taking part in it: for commands beside a running or stopped broker."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import ExitStack, closing
from urllib.parse import quote

from oncelog.cluster.store import Node, UnavailableError
from oncelog.cluster.store_sqlite import FORMAT

_WAIT_S = 1.0
"""The longest time that the read waits: only while another process recovers the write-ahead log after a crash."""


def read_node(path: str, node: str) -> Node | None:
    """Return a node of the SQLite file `path`, or None if it does not exist. No file beside it is written.

    Without a write-ahead log, no process uses the file, and all content is in it. Then SQLite must not create its
    other files, because they would belong to the user of the command. If only the index of the write-ahead log
    (`-shm`) is missing, as in a copy, SQLite would create it. So both files are read from a copy in a temporary folder.
    Raises UnavailableError.
    """
    try:
        with ExitStack() as stack:
            mode = "mode=ro&immutable=1"
            if os.path.exists(f"{path}-wal"):
                mode = "mode=ro"
                if not os.path.exists(f"{path}-shm"):
                    path = _copied(path, stack.enter_context(tempfile.TemporaryDirectory(prefix="oncelog-")))
            opened = sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True, timeout=_WAIT_S)
            connection = stack.enter_context(closing(opened))
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > FORMAT:
                raise UnavailableError(
                    f"{path} was written by a newer oncelog (format {found}; this one reads up to {FORMAT}). "
                    "Use the command of that version"
                )
            row = connection.execute("SELECT data, version, session FROM node WHERE path = ?", (node,)).fetchone()
    except (sqlite3.Error, OSError) as error:
        raise UnavailableError(f"{path}: {error}") from error
    return None if row is None else Node(*row)


def _copied(path: str, folder: str) -> str:
    """Copy a SQLite file and its write-ahead log into a folder of this user only. Return the path of the copy."""
    copy = os.path.join(folder, os.path.basename(path))
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    return copy
