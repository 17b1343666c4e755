"""Check responses: find error codes by the declared fields, and find missing items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from oncelog import errors
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.schema import Message
from oncelog.protocol.topics import TopicPartition


@cache
def _plan(kind: type[Message]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (fields with an error code, fields with structs that may have one) of a message class."""
    codes = tuple(name for name in kind.FIELDS if name.endswith("error_code") and "config" not in name)
    nested = tuple(
        name
        for name, field in kind.FIELDS.items()
        if isinstance(field.element, type) and field.kind in ("array", "struct") and any(_plan(field.element))
    )
    return codes, nested


def error_codes(message: Message) -> Iterator[tuple[ErrorCode, str | None]]:
    """Yield (code, message or None) of every error in a response, outermost first."""
    codes, nested = _plan(type(message))
    for name in codes:
        if code := getattr(message, name):
            yield ErrorCode.of(code), getattr(message, "error_message", None)
    for name in nested:
        value: Any = getattr(message, name)
        for item in value if isinstance(value, list) else (value,) if value is not None else ():
            yield from error_codes(item)


def first_error(message: Message) -> ErrorCode:
    """Return the first retriable error of a response, otherwise its first error, otherwise NONE."""
    first = ErrorCode.NONE
    for code, _ in error_codes(message):
        if code.retriable:
            return code
        first = first or code
    return first


def text_of(message: Message, code: ErrorCode) -> str:
    """Return the message that a response has for an error code, or the general text of the code."""
    return next((text for found, text in error_codes(message) if found is code and text), code.text)


def require_answers(asked: Iterable[str | TopicPartition], answered: Iterable[object], what: str) -> None:
    """Raise ServerError if a response lacks an item of the request, because that is not a success.

    `what` begins the message.
    """
    unanswered = set(asked).difference(answered)
    names = ", ".join(sorted(each if isinstance(each, str) else f"{each[0]}-{each[1]}" for each in unanswered))
    if unanswered:
        raise errors.ServerError(f"{what}: the broker's response does not contain {names}")


def partition_answer(topics: Sequence[Any], at: TopicPartition, what: str) -> Any:
    """Return the result for the partition that a request named alone. Raise ServerError if the response lacks it."""
    answers = [answer for topic in topics for answer in topic.partitions]
    require_answers([at], [at] if answers else [], what)
    return answers[0]


def raise_for_error(message: Message, what: str = "") -> None:
    """Raise the first error of a response. `what` begins its message."""
    for code, text in error_codes(message):
        about = ": ".join(part for part in (what, text or code.text) if part)
        error = errors.error_for(code, about)
        if isinstance(error, errors.AbortableError):  # the caller has no transaction to abort
            raise errors.RequestError(error.message, code)
        raise error
