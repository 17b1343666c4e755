"""Ask each broker about many keys at once, and note what the brokers do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from oncelog import errors
from oncelog.client.admin.hanging import HangingTransaction, without_coordinator
from oncelog.client.admin.transactions import ProducerInfo
from oncelog.client.discovery.cluster import ClusterClient
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import TopicPartition
from oncelog.watch import requests
from oncelog.watch.readings import Trouble, WatchedTransaction
from oncelog.watch.rows import will_end
from oncelog.watch.turns import chunks

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

ANSWER_WAIT_S = 5.0
"""How long an asker waits for a broker."""
KEYS_A_REQUEST = 1_000
"""The most keys in one request."""


class Asker:
    """Ask brokers for what belongs together: a turn of a reader, or a page. No request to one broker is repeated.

    A broker that does not answer within `ANSWER_WAIT_S`, or cannot be reached, is not asked again. What is missing in
    the end is in `troubles`.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self.troubles: list[Trouble] = []
        self._silent: set[int] = set()

    def apart(self) -> Asker:
        """Return an asker with troubles of its own that knows the same silent brokers."""
        made = Asker(self.cluster)
        made._silent = self._silent
        return made

    def is_silent(self) -> bool:
        """Return whether a broker did not answer."""
        return bool(self._silent)

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
        named = node is None or not lost or error.message.startswith(f"broker {node}:")
        who = "" if named else f"broker {node}: "
        if alone or not lost:
            node = None  # the broker answers, or may answer others
        elif node is not None:
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

    async def answers(
        self,
        about: str,
        places: Mapping[K, int],
        ask: Callable[[ClusterClient, int, list[K]], Awaitable[Mapping[K, T | requests.Failed]]],
    ) -> dict[K, T]:
        """Return the results of `by_node`. The errors of keys become troubles."""
        return self.known(about, await self.by_node(about, places, ask))

    def known(self, about: str, found: Mapping[K, T | requests.Failed]) -> dict[K, T]:
        """Return the keys that have a result. The errors of the others become troubles, each text once."""
        failed = (each for each in found.values() if isinstance(each, requests.Failed))
        self.troubles += [Trouble(about, text) for text in dict.fromkeys(each.text for each in failed)]
        return {key: each for key, each in found.items() if not isinstance(each, requests.Failed)}


async def transactions_of(
    asker: Asker, nodes: Iterable[int], producer_ids: Iterable[int]
) -> dict[int, WatchedTransaction]:
    """Return what coordinators show of the transactions of producer ids. They may omit some: see `hanging_among`."""
    wanted = sorted(set(producer_ids))
    if not wanted:
        return {}

    async def ask(cluster: ClusterClient, node: int) -> list[WatchedTransaction]:
        return await requests.transactions(cluster, node, (), wanted)

    listed = await asker.each("transactions", nodes, ask)
    producers = {each.transactional_id: each.producer_id for some in listed.values() for each in some}
    places = {each.transactional_id: node for node, some in listed.items() for each in some}
    described = await asker.by_node("transactions", places, requests.described)
    known = asker.known("transactions", {name: item for name, item in described.items() if not _is_missing(item)})
    # The id's next producer may have begun meanwhile: the transaction that was asked for counts.
    return {producers[name]: item._replace(producer_id=producers[name]) for name, item in known.items()}


OpenIn = tuple[TopicPartition, ProducerInfo]
"""A partition, and a producer with an open transaction there."""


async def hanging_among(
    asker: Asker, known: Mapping[int, WatchedTransaction], candidates: Iterable[OpenIn]
) -> list[OpenIn] | None:
    """Return the candidates that no coordinator will end, or None if nobody can tell: `troubles` say why.

    `known` is what the coordinators show (`transactions_of`). The admin client makes sure of the others. It asks all
    brokers, so it is not called after one of them was silent.
    """
    left = [HangingTransaction(*tp, each) for tp, each in candidates if not will_end(known.get(each.producer_id), tp)]
    if not left:
        return []
    if asker.is_silent():
        return None
    found = await asker.ask("transactions", without_coordinator(asker.cluster, left))
    return None if found is None else [((item.topic, item.partition), item.producer) for item in found]


def _is_missing(item: WatchedTransaction | requests.Failed) -> bool:
    return isinstance(item, requests.Failed) and item.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def texts(troubles: Iterable[Trouble]) -> list[str]:
    """Return troubles as people read them, each once."""
    return list(dict.fromkeys(f"{each.about}: {each.text}" for each in troubles))
