"""What the sink raises. Each message says what to do."""

from __future__ import annotations

from pickle import PickleError

from oncelog.errors import OncelogError


class SinkError(OncelogError, PickleError):
    """Any refusal or failure of the commit protocol. The batch can be tried again unless a subclass says not.

    A PickleError because a plan is made while Spark pickles the writer: PySpark buries any other under its own.
    """


class MisuseError(SinkError):
    """An option, or the use of a prefix or checkpoint, that cannot be right. Nothing was written."""


class NotPermittedError(SinkError):
    """The brokers deny something that the sink needs: the message names the option and the permission."""


class AnotherDriverError(SinkError):
    """A later driver has fenced this one, or is at work on the same prefix."""


class NotDecidedError(SinkError):
    """The batch could not be committed; nothing of it is visible, and Spark replays it."""


class NotVerifiedError(SinkError):
    """The batch is decided, but a marker could not be found or written; the next plan or settle goes on."""


class TornBatchError(SinkError):
    """A decided transaction was aborted before it could be committed (time-out): rows are missing."""
