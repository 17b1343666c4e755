"""Decide whether a log may use its files, and turn the failures of the disk into Kafka's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from oncelog.protocol.errors import ErrorCode, ProtocolError


class TornWriteError(OSError):
    """A write failed, and the file could not be truncated to its former size. Recovery checks its content."""


@contextmanager
def torn_on_failure() -> Iterator[None]:
    """Turn an OSError between changes of several files into a TornWriteError."""
    try:
        yield
    except OSError as error:
        raise TornWriteError(*error.args) from error


class FileAccess:
    """The state of a log's files: usable, in doubt after a torn write, or closed."""

    __slots__ = ("_name", "closed", "failed")

    def __init__(self, name: str) -> None:
        """`name` is for messages: topic and partition."""
        self._name = name
        self.closed = False
        """Whether the log is closed. Its directory may already belong to a new topic of the same name."""
        self.failed = False
        """Whether a write was torn. Only a restart recovers the files."""

    def to(self, action: str) -> Attempt:
        """Return a context manager for one use of the files. Uses may be nested. `action` is for messages: a verb."""
        return Attempt(self, action)

    def check(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER for a closed log, and KAFKA_STORAGE_ERROR after a torn write."""
        if self.closed:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the log of {self._name} is closed")
        if self.failed:
            message = f"the log of {self._name} is offline after a failed write; restart the broker to recover it"
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def failure(self, action: str, error: OSError) -> ProtocolError:
        """Return the error for a client, and remember a torn write."""
        self.failed = isinstance(error, TornWriteError)
        return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot {action} {self._name}: {error}")


class Attempt:
    """A context manager for one use of the files.

    It is a class because each append enters one, and a generator of contextlib would take several times as long.
    """

    __slots__ = ("_access", "_action")

    def __init__(self, access: FileAccess, action: str) -> None:
        self._access = access
        self._action = action

    def __enter__(self) -> None:
        self._access.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise self._access.failure(self._action, error) from error
