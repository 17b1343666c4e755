"""What the methods that Spark calls are wrapped in, so that a user sees the cause last and short.

Not a task that reads: its traceback tells where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from oncelog.errors import OncelogError
from oncelog.spark.commit.errors import SinkError

P = ParamSpec("P")
T = TypeVar("T")


def plain(method: Callable[P, T]) -> Callable[P, T]:
    """Spark shows an exception as the text of its traceback, with all that led to it before: let it have none.

    What the client raised becomes a SinkError (see there) of the same text.
    """

    @wraps(method)
    def told(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except SinkError as error:
            raise error.with_traceback(None) from None
        except OncelogError as error:
            raise SinkError(f"{type(error).__name__}: {error}") from None

    return told
