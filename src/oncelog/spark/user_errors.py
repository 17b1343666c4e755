"""Convert errors for users of Spark: wrap the methods that Spark calls, and find the cause of a failed query.

The texts name the client's options as users of Spark write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from oncelog.client.other_options import OTHER_OPTIONS, Alias
from oncelog.client.security.options import SECURITY
from oncelog.errors import OncelogError
from oncelog.spark.commit.errors import SinkError

P = ParamSpec("P")
T = TypeVar("T")

_OURS = re.compile(r"^oncelog\.[\w.]+: (.+)$", re.MULTILINE)
_ANY = re.compile(r"^(?!org\.|java\.)[A-Za-z_][\w.]*(?:Error|Exception): .+$", re.MULTILINE)

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
NOT_IN_SPARK = (
    (r"sasl_oauth_token_provider,? or |,? or sasl_oauth_token_provider", ""),
    (r"sasl_oauth_token_provider(, which takes no argument)?", TOKEN_URL),
    (r"pass an ssl\.SSLContext of your own as ssl_context", "it is not supported; omit it"),
)
"""Advice about options whose values are Python objects -> advice for Spark, whose values are strings."""

_CLIENT = ("reconnect_backoff_max_ms", "reconnect_backoff_ms", "request_timeout_ms", "transaction_timeout_ms")
_ALIASES = {other for other, known in OTHER_OPTIONS.items() if isinstance(known, Alias) and known.name in SECURITY}
_NAMES = {*SECURITY, *_ALIASES, *_CLIENT} - {"ssl_context", "sasl_oauth_token_provider"}
_LONGEST_FIRST = sorted(_NAMES, key=len, reverse=True)
_SPELLED = re.compile(rf"(?<![\w./-])(?:{'|'.join(name.replace('_', '[._]') for name in _LONGEST_FIRST)})(?![\w-])")


def in_spark(text: str) -> str:
    """Return the text of an error with the prefix `kafka.` at each option of the client."""
    for pattern, replacement in NOT_IN_SPARK:
        text = re.sub(pattern, replacement, text)
    return _SPELLED.sub(lambda found: f"kafka.{found[0].replace('_', '.')}", text)


def translate_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method that Spark calls, so that its errors carry no traceback and no cause.

    Spark shows an exception as the text of its traceback. A client error becomes a SinkError with the same text.
    """

    @wraps(method)
    def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except SinkError as error:
            raise error.with_traceback(None) from None
        except OncelogError as error:
            raise SinkError(f"{type(error).__name__}: {in_spark(str(error))}") from None

    return translated


def translate_batches(batches: Iterator[T]) -> Iterator[T]:
    """Yield the items of a task's reader. Convert errors as `translate_errors` does."""
    try:
        yield from batches
    except SinkError as error:
        raise error.with_traceback(None) from None
    except OncelogError as error:
        raise SinkError(f"{type(error).__name__}: {in_spark(str(error))}") from None


_REMEDIES = {
    'cannot be written in the "ErrorIfExists" mode': 'For oncelog, add .mode("append")',
    "oncelog does not support Update mode": 'Use .outputMode("append"), or write in foreachBatch',
}
"""What to do after errors that Spark itself raises, by a part of their text."""


def cause(error: BaseException) -> str:
    """Return the cause of a failed query or write in one line: the message of oncelog's error in Spark's exception.

    `error` is the exception that Spark raised. If it contains no error of oncelog's, return the first Python exception
    in it, otherwise its first line.
    """
    text = "\n".join(_texts(error))
    if (ours := _OURS.search(text)) is not None:
        return ours[1]
    known = _ANY.search(text)
    first = text.partition("\n")[0] if known is None else known[0]
    return ". ".join([first.rstrip(". "), *(remedy for part, remedy in _REMEDIES.items() if part in text)])


def _texts(error: BaseException) -> Iterator[str]:
    """Yield the messages of a Spark error and of its causes. The JVM's stack trace has both."""
    seen: BaseException | None = error
    while seen is not None:
        yield str(seen)
        yield str(getattr(seen, "_stackTrace", ""))
        seen = getattr(seen, "_cause", None) or seen.__cause__
