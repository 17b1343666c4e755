"""Split a request with many items into parts, and join the responses to the parts.

A coordinator executes each operation without a pause. An operation with thousands of items would block other clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TypeVar

from oncelog.protocol.schema import Message

M = TypeVar("M", bound=Message)

ITEMS_A_PART = 200
"""Offsets, groups or similar items in one operation of a coordinator, which takes some ms."""


def parts_of(request: M, outer: str, inner: str, most: int = ITEMS_A_PART) -> Iterator[M]:
    """Yield the request in parts of at most `most` items. Items are the elements of `inner` in each element of `outer`.

    An element of `outer` without items counts as one. If the request is small enough, it is the only part.
    """
    groups = getattr(request, outer)
    if len(groups) <= most and sum(max(1, len(getattr(group, inner))) for group in groups) <= most:
        yield request
        return
    part: list[Message] = []
    left = most
    for group in groups:
        items = getattr(group, inner)
        first = 0
        while first < len(items) or not items:
            taken = copy(group)
            setattr(taken, inner, items[first : first + left])
            part.append(taken)
            first += left
            left -= max(1, len(getattr(taken, inner)))
            if left <= 0:
                yield _with_part(request, outer, part)
                part, left = [], most
            if not items:
                break
    if part:
        yield _with_part(request, outer, part)


def joined(answers: list[M], outer: str, inner: str) -> M:
    """Join the responses to the parts of a request. If a part ended inside a group, join that group as well."""
    first = answers[0]
    groups = getattr(first, outer)
    for answer in answers[1:]:
        others = getattr(answer, outer)
        if groups and others and _is_same(groups[-1], others[0]):
            getattr(groups[-1], inner).extend(getattr(others[0], inner))
            others = others[1:]
        groups.extend(others)
    return first


def _with_part(request: M, outer: str, part: list[Message]) -> M:
    changed = copy(request)
    setattr(changed, outer, part)
    return changed


def _is_same(one: Message, other: Message) -> bool:
    return all(getattr(one, key, None) == getattr(other, key, None) for key in ("name", "topic_id"))
