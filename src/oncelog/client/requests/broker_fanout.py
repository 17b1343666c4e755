"""Requests about many keys at once: send one to each broker that has some of them, and group moved keys again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from oncelog import errors
from oncelog.client.connections.versions import ByVersion, Request, for_connection
from oncelog.client.discovery.cluster import KINDS, ClusterClient
from oncelog.client.discovery.slow_answers import noticed
from oncelog.net.connection import NoCommonVersionError
from oncelog.net.failures import ConnectionLostError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.find_coordinator import FindCoordinatorRequest

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")

UNANSWERED_WAIT_MS = 10_000
"""How long a request to all brokers waits if it may do without the answers of some of them."""
COORDINATORS_AT_ONCE = 1_000
"""Keys in one FindCoordinator request."""


@dataclass(frozen=True, slots=True)
class BrokerFanout(Generic[K, A]):
    """How to divide keys by broker, request them, and read the responses."""

    where: Callable[[K], Awaitable[int | None]]
    """The node to query: below 0 if there is none at the moment, None to skip the key. May raise KafkaError."""
    make: Callable[[list[K]], Request]
    """Return the request about these keys."""
    read: Callable[[Any], Iterable[tuple[K, ErrorCode, A]]]
    """Yield the error code and the result of each key in a response."""
    moved: Callable[[K, ErrorCode], None]
    """Handle a temporary error of a key: the information of `where` may be outdated."""
    name: Callable[[K], str]
    """Return the name of a key for messages."""


async def ask_by_node(
    cluster: ClusterClient,
    fanout: BrokerFanout[K, A],
    keys: Iterable[K],
    *,
    timeout_ms: float | None = None,
    patience_ms: float | None = None,
    into: dict[K, A] | None = None,
) -> dict[K, A]:
    """Return the result for each key. Send requests to all brokers at the same time.

    After a temporary error, look keys up again, group them by broker, and ask again, until `timeout_ms` (default: the
    cluster's api_timeout_ms) is over. After `patience_ms`, begin no further attempt, but wait for results in
    progress. Raise other errors, and the last temporary one: KafkaError, or TimedOutError without one. `into` gets
    each result as it arrives, also if other keys fail.
    """
    now = asyncio.get_running_loop().time
    within_ms = cluster.api_timeout_ms if timeout_ms is None else timeout_ms
    begun = now()
    limit = begun + within_ms / 1000
    left = list(dict.fromkeys(keys))
    found: dict[K, A] = {} if into is None else into
    failures: dict[K, errors.KafkaError] = {}
    waits, subject = cluster.retries.waits, ("keys", *map(fanout.name, left[:1]))
    backoff = cluster.backoff()
    try:
        async with asyncio.timeout_at(limit) as scope:
            while left:
                failures = await _ask_once(cluster, fanout, left, found)
                left = list(failures)
                if left:
                    delay = backoff.next_s()
                    patience = cluster.retries.patience(timeout_ms if patience_ms is None else patience_ms)
                    if now() + delay > min(limit, begun + patience):
                        raise failures[left[0]]
                    failure = failures[left[0]]
                    waits.waiting(subject, f"a call waits: {failure}".rstrip("."), failure)
                    await asyncio.sleep(delay)
    except TimeoutError:
        if not scope.expired():
            raise
        left = [key for key in left if key not in found]
        if left and left[0] in failures:
            raise failures[left[0]] from None
        reason = waits.why()
        why = reason and f": {reason}"
        what = ", ".join(map(fanout.name, left))
        raise errors.TimedOutError(f"{what}: no response within {within_ms:.0f} ms{why}") from waits.cause()
    waits.over(subject)
    return found


async def _ask_once(
    cluster: ClusterClient, fanout: BrokerFanout[K, A], keys: list[K], found: dict[K, A]
) -> dict[K, errors.KafkaError]:
    """Send one round of requests. Return the errors of keys to retry. Raise a permanent error after all results."""
    failures: dict[K, errors.KafkaError] = {}
    raised: list[BaseException] = []
    groups = await _grouped(fanout, keys, failures, raised)

    async def ask(node: int, group: list[K]) -> None:
        try:
            response = await ask_once(cluster, node, fanout.make(group))
        except errors.RetriableError as error:
            failures.update(dict.fromkeys(group, error))
            return
        _take(fanout, response, node, group, found, failures)

    ended = await asyncio.gather(*(ask(*group) for group in groups.items()), return_exceptions=True)
    raised += [error for error in ended if error is not None]
    for key, failure in failures.items():
        fanout.moved(key, failure.code)
    if raised:
        raise raised[0]
    return failures


async def _grouped(
    fanout: BrokerFanout[K, A], keys: list[K], failures: dict[K, errors.KafkaError], raised: list[BaseException]
) -> dict[int, list[K]]:
    groups: dict[int, list[K]] = {}
    nodes = await asyncio.gather(*map(fanout.where, keys), return_exceptions=True)
    for key, node in zip(keys, nodes, strict=True):
        if isinstance(node, errors.RetriableError) and not isinstance(node, errors.UnknownTopicError):
            failures[key] = node
        elif isinstance(node, BaseException):
            raised.append(node)
        elif node is not None and node < 0:
            failures[key] = errors.error_for(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{fanout.name(key)}: the partition has no leader"
            )
        elif node is not None:
            groups.setdefault(node, []).append(key)
    return groups


async def ask_once(cluster: ClusterClient, node: int, request: Request, purpose: str = "") -> Any:
    """Return one broker's response, without a retry. Raises ConnectionFailedError and UnsupportedError.

    Each `purpose` has a connection of its own, because a slow request makes the later ones of its connection wait.
    """
    connection = await cluster.connection(node, purpose)
    try:
        message, version = for_connection(request, None, connection)
        name = type(message).__name__
        with noticed(cluster.retries.waits, (name, node), f"broker {node}", name):
            return await connection.call(message, version)
    except ConnectionLostError as error:
        raise errors.ConnectionFailedError(str(error)) from error
    except NoCommonVersionError as error:
        raise errors.UnsupportedError(str(error)) from error


def _take(
    fanout: BrokerFanout[K, A],
    response: Any,
    node: int,
    group: list[K],
    found: dict[K, A],
    failures: dict[K, errors.KafkaError],
) -> None:
    """Read each key's result or temporary error. A permanent error is raised after the other keys."""
    unanswered = dict.fromkeys(group)
    stays: errors.KafkaError | None = None
    for key, code, answer in fanout.read(response):
        if key not in unanswered:
            continue
        del unanswered[key]
        if code is ErrorCode.NONE:
            found[key] = answer
            continue
        error = errors.error_for(code, f"{fanout.name(key)}: {code.text}")
        if code.retriable:
            failures[key] = error
        else:
            stays = stays or error
    for key in unanswered:
        what = f"the response of broker {node} does not contain {fanout.name(key)}"
        failures[key] = errors.error_for(ErrorCode.UNKNOWN_SERVER_ERROR, what)
    if stays is not None:
        raise stays


async def gather_brokers(
    cluster: ClusterClient,
    make: Callable[[], Request],
    nodes: Sequence[int] | None = None,
    unanswered: dict[int, errors.RetriableError] | None = None,
) -> dict[int, Any]:
    """Send one request to every broker (or to `nodes`) at the same time. Return the responses by node id.

    If a broker dies meanwhile, wait for it, even if the metadata no longer has it. New coordinators omit its groups and
    transactions from their responses until they have loaded them.

    With `unanswered`, wait for at most `UNANSWERED_WAIT_MS`, put the errors of the other brokers there, and return the
    responses without them. If no broker answers, raise the error of one of them.
    """
    wanted = list(await cluster.brokers()) if nodes is None else list(nodes)
    if unanswered is None:
        answers = await asyncio.gather(*(cluster.call_broker(node, make()) for node in wanted))
        return dict(zip(wanted, answers, strict=True))
    found: dict[int, Any] = {}

    async def ask(node: int) -> None:
        try:
            found[node] = await cluster.call_broker(node, make(), timeout_ms=UNANSWERED_WAIT_MS)
        except errors.RetriableError as error:
            unanswered[node] = error

    await asyncio.gather(*map(ask, wanted))
    if unanswered and not found:
        raise next(iter(unanswered.values()))
    return {node: found[node] for node in wanted if node in found}


async def find_coordinators(cluster: ClusterClient, kind: str, keys: Iterable[str]) -> None:
    """Look up the coordinators (`kind` "group" or "transaction") that the client does not know yet (KIP-699).

    If a key has no coordinator at the moment, it stays unknown: `ClusterClient.coordinator` retries it. If a broker
    accepts only one key per request (before version 4), `ClusterClient.coordinator` looks up all keys.
    """
    unknown = [key for key in dict.fromkeys(keys) if cluster.known_coordinator(kind, key) is None]
    for start in range(0, len(unknown), COORDINATORS_AT_ONCE):
        response = await cluster.call_any(_find_request(kind, unknown[start : start + COORDINATORS_AT_ONCE]))
        if not response.coordinators:
            return
        for answer in response.coordinators:
            if not answer.error_code:
                cluster.learn_coordinator(kind, answer.key, answer)


def _find_request(kind: str, keys: list[str]) -> ByVersion:
    def make(version: int) -> FindCoordinatorRequest:
        request = FindCoordinatorRequest(key_type=KINDS[kind])
        if version < 4:
            request.key = keys[0]
        else:
            request.coordinator_keys = keys
        return request

    return ByVersion(FindCoordinatorRequest, make)
