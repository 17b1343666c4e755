"""The errors of the sink. Each message says what to do."""

from __future__ import annotations

from pickle import PickleError

from oncelog.errors import OncelogError


class SinkError(OncelogError, PickleError):
    """An error of the commit protocol. Spark can replay the batch, unless a subclass says otherwise.

    It is a PickleError because a plan is made while Spark pickles the writer: PySpark hides any other error there.
    """


class MisuseError(SinkError):
    """A wrong option, or a wrong use of a prefix or checkpoint. Nothing was written."""


class NotPermittedError(SinkError):
    """The brokers deny a request of the sink. The message names the option and the permission."""


class AnotherDriverError(SinkError):
    """A later driver has fenced this one, or another driver works on the same prefix."""


class NotDecidedError(SinkError):
    """The batch could not be committed. Nothing of it is visible, and Spark replays it."""


class NotVerifiedError(SinkError):
    """The batch is decided, but a marker could not be found or written. The next plan or settle continues."""


class TornBatchError(SinkError):
    """A decided transaction was aborted (timeout) before it could be committed: rows are missing."""
