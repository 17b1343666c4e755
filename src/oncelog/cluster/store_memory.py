"""The versioned tree in memory, for tests and simulations. `sim.store` gives each simulated process a client of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oncelog.cluster.store import (
    Create,
    Delete,
    MetadataStore,
    Node,
    Operation,
    Row,
    SessionExpiredError,
    Watches,
    apply,
    parent_of,
)


@dataclass(slots=True)
class _Session:
    owner: str
    ttl_ms: int
    expires_ms: int


class _MemoryRows:
    """Rows in a dictionary, with a journal that undoes a transaction."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {"/": Row(Node(b"", 0), 0, 0)}
        self.names_of: dict[str, set[str]] = {}
        self.journal: list[tuple[str, Row | None]] = []

    def find(self, path: str) -> Row | None:
        return self.rows.get(path)

    def put(self, path: str, row: Row) -> None:
        self.journal.append((path, self.rows.get(path)))
        self._store(path, row)

    def remove(self, path: str) -> None:
        self.journal.append((path, self.rows.get(path)))
        self._store(path, None)

    def names(self, path: str) -> list[str]:
        return sorted(self.names_of.get(path, ()))

    def undo(self) -> None:
        while self.journal:
            self._store(*self.journal.pop())

    def _store(self, path: str, row: Row | None) -> None:
        if path != "/":
            siblings = self.names_of.setdefault(parent_of(path), set())
            name = path.rpartition("/")[2]
            if row is None:
                siblings.discard(name)
            else:
                siblings.add(name)
        if row is None:
            self.rows.pop(path, None)
            self.names_of.pop(path, None)
        else:
            self.rows[path] = row


class MemoryStore(MetadataStore):
    """A `MetadataStore` for one thread. `now_ms` is the clock of its sessions."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.locked = False
        """Whether a writer hangs in its transaction. Then no session ends, and writes wait in `sim.store`."""
        self._now_ms = now_ms
        self._rows = _MemoryRows()
        self._sessions: dict[int, _Session] = {}
        self._watches = Watches()
        self._changes = 0
        self._last_session = 0

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """See `MetadataStore.get_many`."""
        rows = map(self._rows.find, paths)
        return [None if row is None else row.node for row in rows]

    def find(self, path: str) -> Row | None:
        """Return the stored node with the numbers of its changes, or None. Clients with watches of their own use it."""
        return self._rows.find(path)

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the node's children. Raises NoNodeError."""
        self.get(path)
        return self._rows.names(path)

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        """Carry out all operations or none. See `MetadataStore.multi`."""
        self._expire()
        owners = {op.session for op in operations if isinstance(op, Create)} | {session}
        for owner in owners - {None}:
            if owner not in self._sessions:
                raise SessionExpiredError(owner)
        self._changes += 1
        try:
            for operation in operations:
                apply(self._rows, operation, self._changes)
        except BaseException:
            self._rows.undo()
            raise
        self._rows.journal.clear()

    def open_session(self, owner: str, ttl_ms: int) -> int:
        """Open a session, and return its number. An earlier session of the same owner ends."""
        for number, session in list(self._sessions.items()):
            if session.owner == owner:
                self.close_session(number)
        self._last_session += 1
        self._sessions[self._last_session] = _Session(owner, ttl_ms, self._now_ms() + ttl_ms)
        return self._last_session

    def renew(self, session: int) -> None:
        """Extend the lease of a session to its full `ttl_ms`. Raises SessionExpiredError."""
        self._expire()
        if session not in self._sessions:
            raise SessionExpiredError(session)
        self._sessions[session].expires_ms = self._now_ms() + self._sessions[session].ttl_ms

    def close_session(self, session: int) -> None:
        """End a session and delete its ephemeral nodes. A session that has ended already is ignored."""
        if self._sessions.pop(session, None) is not None:
            mine = [path for path, row in self._rows.rows.items() if row.node.session == session]
            if mine:
                self.multi([Delete(path) for path in sorted(mine)])

    def watch(self, path: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        return self._watches.add(path, callback, self._rows.find(path))

    def poll(self) -> None:
        """End expired sessions, then call the callbacks of changed nodes."""
        self._expire()
        for callback, path in self._watches.changed(self._rows.find):
            callback(path)

    def is_quiet(self) -> bool:
        """Return False: a `poll` costs little."""
        return False

    def close(self) -> None:
        """Do nothing: there are no files to close."""

    def _expire(self) -> None:
        now_ms = self._now_ms()
        for number, session in list(self._sessions.items()):
            if session.expires_ms <= now_ms and not self.locked:
                self.close_session(number)
