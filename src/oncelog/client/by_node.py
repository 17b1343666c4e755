"""Requests about many things at once: one to each broker that has some of them, grouped anew when they have moved."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oncelog import errors
from oncelog.client.backoff import Backoff
from oncelog.client.cluster import ClusterClient
from oncelog.client.versions import Request, for_connection
from oncelog.net.connection import ConnectionLostError, NoCommonVersionError
from oncelog.protocol.errors import ErrorCode

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Question(Generic[K, A]):
    """What is asked about each key, and how its answer is found."""

    where: Callable[[K], Awaitable[int | None]]
    """The node to ask, below 0 if there is none at the moment, None if nobody is to be asked. Errors as of a broker."""
    make: Callable[[list[K]], Request]
    """The request about these keys."""
    read: Callable[[Any], Iterable[tuple[K, ErrorCode, A]]]
    """What a response says about each."""
    moved: Callable[[K, ErrorCode], None]
    """Called after an error that passes by itself: what `where` went by may be old."""
    name: Callable[[K], str]
    """For messages."""


async def ask_by_node(
    cluster: ClusterClient, question: Question[K, A], keys: Iterable[K], *, timeout_ms: float | None = None
) -> dict[K, A]:
    """The answer about each key, of those that somebody is to be asked about; brokers are asked at the same time.

    Those whose error passes by itself are looked for, grouped and asked again, each where it is by then, until
    `timeout_ms` (default: the cluster's api_timeout_ms) are over; other errors are raised: KafkaError.
    """
    now = asyncio.get_running_loop().time
    limit = now() + (cluster.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
    left = list(dict.fromkeys(keys))
    found: dict[K, A] = {}
    backoff = Backoff(50, 1000)
    while True:
        failures: dict[K, errors.KafkaError] = {}
        groups = await _grouped(question, left, failures)
        responses = await asyncio.gather(
            *(_answer(cluster, node, question.make(group), (limit - now()) * 1000) for node, group in groups.items()),
            return_exceptions=True,
        )
        for response, group in zip(responses, groups.values(), strict=True):
            if isinstance(response, errors.RetriableError):
                failures.update(dict.fromkeys(group, response))
            elif isinstance(response, BaseException):
                raise response
            else:
                _take(question, response, group, found, failures)
        if not failures:
            return found
        for key, failure in failures.items():
            question.moved(key, failure.code)
        delay = backoff.next_ms(random.random()) / 1000
        if now() + delay > limit:
            raise next(iter(failures.values()))
        await asyncio.sleep(delay)
        left = list(failures)


async def _grouped(question: Question[K, A], keys: list[K], failures: dict[K, errors.KafkaError]) -> dict[int, list[K]]:
    nodes = await asyncio.gather(*map(question.where, keys), return_exceptions=True)
    groups: dict[int, list[K]] = {}
    for key, node in zip(keys, nodes, strict=True):
        if isinstance(node, errors.RetriableError) and not isinstance(node, errors.UnknownTopicError):
            failures[key] = node
        elif isinstance(node, BaseException):
            raise node
        elif node is not None and node < 0:
            failures[key] = errors.error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{question.name(key)} has no leader")
        elif node is not None:
            groups.setdefault(node, []).append(key)
    return groups


async def _answer(cluster: ClusterClient, node: int, request: Request, left_ms: float) -> Any:
    connection = await cluster.connection(node)
    try:
        message, version = for_connection(request, None, connection)
        return await connection.call(message, version, timeout_ms=max(1.0, min(left_ms, cluster.request_timeout_ms)))
    except ConnectionLostError as error:
        raise errors.ConnectionFailedError(str(error)) from error
    except NoCommonVersionError as error:
        raise errors.UnsupportedError(str(error)) from error


def _take(
    question: Question[K, A],
    response: Any,
    group: list[K],
    found: dict[K, A],
    failures: dict[K, errors.KafkaError],
) -> None:
    for key, code, answer in question.read(response):
        if code is ErrorCode.NONE:
            found[key] = answer
            continue
        error = errors.error_for(code, f"{question.name(key)}: {code.text}")
        if not code.retriable:
            raise error
        failures[key] = error
    for key in group:  # one that a broker leaves out is asked about again
        if key not in found and key not in failures:
            what = f"{question.name(key)}: the broker did not answer about it"
            failures[key] = errors.error_for(ErrorCode.UNKNOWN_SERVER_ERROR, what)
