"""A producer without its face: what the blocking producer and the one for asyncio ask of it, on `send_loop`."""

from __future__ import annotations

import contextlib
from collections import deque

from oncelog import errors
from oncelog.client.calls import Calls, ends_when_closed
from oncelog.client.producer.batch import all_done
from oncelog.client.producer.prepared import PreparedTransaction
from oncelog.client.producer.send_loop import SendLoop
from oncelog.client.producer.transaction_manager import ManagerState, TransactionManager


class Sender(SendLoop):
    """Everything of a producer but its face."""

    @property
    def _calls(self) -> Calls:
        return self.cluster.calls

    def _transactional(self) -> TransactionManager:
        if self.manager is None or not self.manager.transactional:
            raise errors.UsageError("transactions need the option transactional_id")
        return self.manager

    @ends_when_closed
    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Get producer id and epoch, ending whatever a predecessor with this transactional id left open."""
        manager = self._transactional()
        with self.lock:
            manager.initialize()
        timeout = self.options["max_block_ms"] if timeout_ms is None else timeout_ms
        await self.until(lambda: manager.state is not ManagerState.INITIALIZING, timeout, "init_transactions")
        manager.require_no_error()

    def begin(self) -> None:
        """Begin a transaction (any thread)."""
        manager = self._transactional()
        self.check_open()
        with self.lock:
            manager.begin()

    @ends_when_closed
    async def commit(self, timeout_ms: float | None = None) -> None:
        """Commit. After TimedOutError the outcome is open: commit again."""
        manager = self._transactional()
        with self.lock:
            manager.begin_commit()
        await self._end(manager, ManagerState.COMMITTING, "commit", timeout_ms)

    @ends_when_closed
    async def abort(self, timeout_ms: float | None = None) -> None:
        """Abort: what waits is dropped, what is under way is waited for."""
        await self._abort(timeout_ms)

    async def _abort(self, timeout_ms: float | None) -> None:
        manager = self._transactional()
        with self._settling() as settlement:
            manager.begin_abort()
            settlement.drop_undrained(errors.AbortableError("the transaction was aborted"))
        await self._end(manager, ManagerState.ABORTING, "abort", timeout_ms)

    def fail_transaction(self, why: str) -> None:
        """Have the transaction in progress refuse to be committed (any thread)."""
        with self.lock:
            self._transactional().fail_with(errors.AbortableError(why))
        self.wake()

    async def _end(
        self, manager: TransactionManager, ending: ManagerState, what: str, timeout_ms: float | None
    ) -> None:
        timeout = self.options["max_block_ms"] if timeout_ms is None else timeout_ms
        self.accumulator.flushing += 1
        self._ending += 1
        try:
            await self.until(lambda: manager.state not in (ending, ManagerState.INITIALIZING), timeout, what)
            manager.untold = None
        finally:
            self._ending -= 1
            self.accumulator.flushing -= 1
            self.changed()  # `close` may wait for this
        manager.require_no_error()

    @ends_when_closed
    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send everything now and wait for every answer; failures are in the records' futures."""
        await self._flush(timeout_ms)

    async def _flush(self, timeout_ms: float | None) -> None:
        with self.lock:
            batches = deque(self.accumulator.incomplete())
            self.accumulator.flushing += 1
        try:
            timeout = float("inf") if timeout_ms is None else timeout_ms
            await self.until(lambda: all_done(batches), min(timeout, 2**31), "flush")
        finally:
            self.accumulator.flushing -= 1

    @ends_when_closed
    async def prepare(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Everything of the transaction acknowledged; what it takes to end it from anywhere. May be called again."""
        manager = self._transactional()
        with self.lock:
            manager.begin_prepare()
            self.accumulator.flushing += 1
        try:
            timeout = self.options["max_block_ms"] if timeout_ms is None else timeout_ms
            await self.until(
                lambda: manager.state is not ManagerState.PREPARED or self._all_in(manager), timeout, "prepare"
            )
        finally:
            self.accumulator.flushing -= 1
        manager.require_no_error()
        return manager.prepared()

    def _all_in(self, manager: TransactionManager) -> bool:
        return self.accumulator.empty and manager.joined

    async def close(self, timeout_ms: float | None = None, *, detach: bool = False) -> None:
        """Send the remaining records, abort an open transaction (unless `detach`, or it is prepared), close the
        connections.

        A commit or abort that another task or thread waits for may complete first. If that commit fails, close()
        aborts the transaction in the time that is left. Every other call in progress ends with ClientClosedError.
        Without transactions, raise the first failure that no caller has retrieved.
        """
        if self.closed:
            return
        self._begin_closing()
        timeout = self.options["delivery_timeout_ms"] if timeout_ms is None else timeout_ms
        manager = self.manager
        transactional = manager is not None and manager.transactional
        until = self.now_ms() + timeout
        try:
            if self._ending:
                with contextlib.suppress(errors.TimedOutError):  # the call in progress raises the error
                    await self.until(lambda: not self._ending, timeout, "close")
                timeout = max(0, until - self.now_ms())
            if manager is None or not transactional:
                with contextlib.suppress(errors.TimedOutError):  # what is left fails then, and that is told
                    await self._flush(timeout)
            elif self._ending:
                pass  # no time is left for an abort
            elif detach:
                await self._flush(timeout)
            elif manager.state in (ManagerState.IN_TRANSACTION, ManagerState.ABORTABLE_ERROR):
                await self._abort(timeout)
        finally:
            await self._hang_up()
        failure = None if transactional else self.failures.first_unseen()
        if failure is not None:
            raise failure
