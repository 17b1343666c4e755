"""Read a node of a metadata store without taking part in it: for commands beside a running or stopped broker."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from urllib.parse import quote

from oncelog.cluster.store import Node, UnavailableError
from oncelog.cluster.store_sqlite import FORMAT

_WAIT_S = 1.0
"""The longest time that the read waits: only while another process recovers the write-ahead log after a crash."""


def read_node(path: str, node: str) -> Node | None:
    """Return a node of the SQLite file `path`, or None if it does not exist. No file is written.

    Without a write-ahead log, no process uses the file, and all content is in it. Then SQLite must not create its
    other files, because they would belong to the user of the command. Raises UnavailableError.
    """
    mode = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True, timeout=_WAIT_S)) as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > FORMAT:
                raise UnavailableError(
                    f"{path} was written by a newer oncelog (format {found}; this one reads up to {FORMAT}). "
                    "Use the command of that version"
                )
            row = connection.execute("SELECT data, version, session FROM node WHERE path = ?", (node,)).fetchone()
    except sqlite3.Error as error:
        raise UnavailableError(f"{path}: {error}") from error
    return None if row is None else Node(*row)
