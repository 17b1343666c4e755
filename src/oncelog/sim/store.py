"""The metadata store as one process sees it: with latency, outages and its own watches."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from oncelog.cluster.store import (
    MetadataStore,
    Node,
    Operation,
    OutcomeUnknownError,
    StoreError,
    UnavailableError,
    Watches,
)
from oncelog.cluster.store_memory import MemoryStore
from oncelog.sim.loop import Process, ProcessDied
from oncelog.sim.threads import owe, pause

T = TypeVar("T")

TIMEOUT_S = 5.0
"""After this time without an answer, a call fails. A write also fails if the store stays locked for this time."""
_LOCK_RETRY_S = 0.05
_SLOW = 0.2
"""The share of slow answers."""


class StoreLink:
    """The connection from one machine to the metadata store. It outlives the processes of the machine."""

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        rng: random.Random,
        latency_s: tuple[float, float],
        trace: Callable[[str], None],
    ) -> None:
        self.latency_s = latency_s
        """The range of the latency of a request, and of its answer."""
        self.slow_answers_s = 0.0
        """One in five answers to writes takes up to this much longer. Meanwhile, other calls may read the write."""
        self.cut_requests = False
        """Whether requests are lost. Nothing changes, and the caller gets UnavailableError."""
        self.cut_answers = False
        """Whether answers are lost. Writes take effect, and the caller gets OutcomeUnknownError."""
        self.lose_answers = 0
        """The answers to this many further writes are lost."""
        self._name = name
        self._store = store
        self._rng = rng
        self._trace = trace
        self._sessions: list[int] = []

    def expire_sessions(self) -> None:
        """End all sessions of the machine's processes, as if their leases had expired."""
        for session in self._sessions:
            self._trace(f"session {session} of {self._name} expires")
            self._store.close_session(session)
        self._sessions.clear()

    def open_session(self, owner: str, ttl_ms: int) -> int:
        """Open a session in the store."""
        session = self._store.open_session(owner, ttl_ms)
        self._sessions.append(session)
        return session

    def call(self, what: str, work: Callable[[], T], *, write: bool, renewal: bool = False) -> T:
        """Carry out a call in the store, between two latencies. Its answer may get lost. Renewals wait for no lock."""
        if self.latency_s[1]:
            pause(self._latency_s())
        if self.cut_requests:
            self._trace(f"request of {self._name} is lost: {what}")
            pause(TIMEOUT_S)
            raise UnavailableError(f"no connection to the metadata store: {what}")
        if write and not renewal:
            self._wait_for_lock(what)
        error: StoreError | None = None
        try:
            result = work()
        except StoreError as rejected:
            error = rejected
        if self.cut_answers or (write and self.lose_answers):
            self.lose_answers -= write and not self.cut_answers
            self._trace(f"answer to {self._name} is lost: {what}")
            pause(TIMEOUT_S)
            kind = OutcomeUnknownError if write else UnavailableError
            raise kind(f"no answer from the metadata store: {what}")
        if write:
            self._trace(f"{self._name}: {what}{'' if error is None else f' fails: {type(error).__name__} {error}'}")
        slow = write and self.slow_answers_s and self._rng.random() < _SLOW
        owe(self._latency_s() + (self._rng.uniform(0, self.slow_answers_s) if slow else 0.0))
        if error is not None:
            raise error
        return result

    def _wait_for_lock(self, what: str) -> None:
        waited_s = 0.0
        while self._store.locked:
            if waited_s >= TIMEOUT_S:
                self._trace(f"{self._name} cannot write: {what}")
                raise UnavailableError(f"another process holds the write lock: {what}")
            pause(_LOCK_RETRY_S)
            waited_s += _LOCK_RETRY_S

    @property
    def is_cut(self) -> bool:
        """Whether a call would get no answer."""
        return self.cut_requests or self.cut_answers

    def _latency_s(self) -> float:
        return self._rng.uniform(*self.latency_s) if self.latency_s[1] else 0.0


class SimStore(MetadataStore):
    """A `MetadataStore` for one process. Its watches call back in this process only."""

    def __init__(self, store: MemoryStore, link: StoreLink, process: Process) -> None:
        self._store = store
        self._link = link
        self._process = process
        self._watches = Watches()

    def _call(self, what: str, work: Callable[[], T], *, write: bool = False, renewal: bool = False) -> T:
        if not self._process.alive:
            raise ProcessDied
        result = self._link.call(what, work, write=write, renewal=renewal)
        if not self._process.alive:
            raise ProcessDied
        return result

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """See `MetadataStore.get_many`."""
        return self._call(f"get {', '.join(paths)}", lambda: self._store.get_many(paths))

    def children(self, path: str) -> list[str]:
        """See `MetadataStore.children`."""
        return self._call(f"children of {path}", lambda: self._store.children(path))

    def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> None:
        """See `MetadataStore.multi`."""
        what = ", ".join(f"{type(operation).__name__.lower()} {operation.path}" for operation in operations)
        self._call(what, lambda: self._store.multi(operations, session=session), write=True)

    def open_session(self, owner: str, ttl_ms: int) -> int:
        """See `MetadataStore.open_session`."""
        return self._call(f"open session of {owner}", lambda: self._link.open_session(owner, ttl_ms), write=True)

    def renew(self, session: int) -> None:
        """See `MetadataStore.renew`."""
        self._call(f"renew session {session}", lambda: self._store.renew(session), write=True, renewal=True)

    def close_session(self, session: int) -> None:
        """See `MetadataStore.close_session`."""
        self._call(f"close session {session}", lambda: self._store.close_session(session), write=True)

    def watch(self, path: str, callback: Callable[[str], None]) -> Callable[[], None]:
        """See `MetadataStore.watch`."""
        return self._watches.add(path, callback, self._call(f"watch {path}", lambda: self._store.find(path)))

    def poll(self) -> None:
        """See `MetadataStore.poll`."""
        self._call("poll", self._store.poll)
        for callback, path in self._watches.changed(self._store.find):
            callback(path)

    def is_quiet(self) -> bool:
        """Return whether `poll` would find nothing, as in a store that announces changes. Costs no time.

        Return False while the connection is cut, so that the caller notices.
        """
        self._store.poll()
        return not self._link.is_cut and not self._watches.have_changed(self._store.find)

    def close(self) -> None:
        """Do nothing. Sessions remain until they end."""
