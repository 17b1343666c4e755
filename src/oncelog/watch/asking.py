"""Ask each broker about many keys at once, and note what the brokers do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from oncelog import errors
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.protocol.errors import ErrorCode
from oncelog.watch import requests
from oncelog.watch.readings import Trouble, WatchedTransaction
from oncelog.watch.turns import chunks

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

ANSWER_WAIT_S = 5.0
"""How long an asker waits for a broker."""
KEYS_A_REQUEST = 1_000
"""The most keys in one request."""


class Asker:
    """Ask brokers for what belongs together: a turn of a reader, or a page. No request is repeated.

    A broker that does not answer within `ANSWER_WAIT_S`, or cannot be reached, is not asked again. What is missing in
    the end is in `troubles`.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self.troubles: list[Trouble] = []
        self._silent: set[int] = set()

    async def ask(self, about: str, awaited: Awaitable[T], node: int | None = None, *, alone: bool = False) -> T | None:
        """Return a response, or None after an error, which becomes a trouble.

        With `alone`, the request has a connection of its own: without a response, the broker may still answer others.
        """
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                return await awaited
        except TimeoutError:
            error: errors.KafkaError = errors.TimedOutError(f"no response within {ANSWER_WAIT_S:g} s")
        except errors.KafkaError as failure:
            error = failure
        lost = isinstance(error, errors.TimedOutError | errors.ConnectionFailedError)
        who = "" if node is None or not lost else f"broker {node}: "
        if alone or not isinstance(error, errors.RetriableError):
            node = None  # the broker does answer
        elif node is not None and lost:
            self._silent.add(node)
        self.troubles.append(Trouble(about, f"{who}{error.message.rstrip('.')} ({error.code.name})", node))
        return None

    async def each(
        self,
        about: str,
        nodes: Iterable[int],
        ask: Callable[[ClusterClient, int], Awaitable[T]],
        *,
        alone: bool = False,
    ) -> dict[int, T]:
        """Ask each of these brokers. Return the responses by node id. For `alone`, see `ask`."""
        asked = [node for node in nodes if node not in self._silent]
        answers = await asyncio.gather(*(self.ask(about, ask(self.cluster, node), node, alone=alone) for node in asked))
        return {node: answer for node, answer in zip(asked, answers, strict=True) if answer is not None}

    async def by_node(
        self,
        about: str,
        places: Mapping[K, int],
        ask: Callable[[ClusterClient, int, list[K]], Awaitable[Mapping[K, T | requests.Failed]]],
        *,
        alone: bool = False,
    ) -> dict[K, T | requests.Failed]:
        """Ask for keys at their brokers (`places`: key -> node id, below 0 if there is none at the moment).

        Keys of brokers that do not answer are absent. For `alone`, see `ask`.
        """
        by_node: dict[int, list[K]] = {}
        for key, node in places.items():
            if node >= 0:
                by_node.setdefault(node, []).append(key)
        found: dict[K, T | requests.Failed] = {}

        async def one(node: int, keys: list[K]) -> None:
            for some in chunks(keys, KEYS_A_REQUEST):
                if node not in self._silent:
                    answer = await self.ask(about, ask(self.cluster, node, some), node, alone=alone)
                    found.update(answer or {})

        await asyncio.gather(*(one(node, keys) for node, keys in by_node.items()))
        return found

    def known(self, about: str, found: Mapping[K, T | requests.Failed]) -> dict[K, T]:
        """Return the keys that have a result. The errors of the others become troubles, each text once."""
        failed = (each for each in found.values() if isinstance(each, requests.Failed))
        self.troubles += [Trouble(about, text) for text in dict.fromkeys(each.text for each in failed)]
        return {key: each for key, each in found.items() if not isinstance(each, requests.Failed)}


async def transactions_of(
    asker: Asker, nodes: Iterable[int], producer_ids: Iterable[int]
) -> tuple[dict[int, WatchedTransaction], bool]:
    """Return what coordinators know of the transactions of producer ids, and whether all coordinators have answered."""
    wanted, asked = sorted(set(producer_ids)), list(nodes)
    if not wanted:
        return {}, True

    async def ask(cluster: ClusterClient, node: int) -> list[WatchedTransaction]:
        return await requests.transactions(cluster, node, (), wanted)

    listed = await asker.each("transactions", asked, ask)
    producers = {each.transactional_id: each.producer_id for some in listed.values() for each in some}
    places = {each.transactional_id: node for node, some in listed.items() for each in some}
    described = await asker.by_node("transactions", places, requests.described)
    known = {name: item for name, item in described.items() if isinstance(item, WatchedTransaction)}
    expired = {name for name, item in described.items() if _is_missing(item)}
    complete = len(listed) == len(asked) and known.keys() | expired >= places.keys()
    # The id's next producer may have begun meanwhile: the transaction that was asked for counts.
    return {producers[name]: item._replace(producer_id=producers[name]) for name, item in known.items()}, complete


def _is_missing(item: WatchedTransaction | requests.Failed) -> bool:
    return isinstance(item, requests.Failed) and item.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def texts(troubles: Iterable[Trouble]) -> list[str]:
    """Return troubles as people read them, each once."""
    return list(dict.fromkeys(f"{each.about}: {each.text}" for each in troubles))
