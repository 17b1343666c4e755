"""Ask each broker about many keys at once, and note what the brokers do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from oncelog import errors
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
UNUSED_ID = "oncelog 5b0f9e0c-6a3c-4b8e-9d52-1d1f6a0f7c11"
"""A transactional id that nobody uses."""


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
) -> tuple[dict[int, WatchedTransaction], bool]:
    """Return what coordinators know of the transactions of producer ids, and whether these are all that exist.

    They are not if a coordinator does not answer, or the client may not see all transactional ids.
    """
    wanted, asked = sorted(set(producer_ids)), list(nodes)
    if not wanted:
        return {}, True

    async def ask(cluster: ClusterClient, node: int) -> list[WatchedTransaction]:
        return await requests.transactions(cluster, node, (), wanted)

    listed = await asker.each("transactions", asked, ask)
    producers = {each.transactional_id: each.producer_id for some in listed.values() for each in some}
    places = {each.transactional_id: node for node, some in listed.items() for each in some}
    described = await asker.by_node("transactions", places, requests.described)
    expired = {name for name, item in described.items() if _is_missing(item)}
    known = asker.known("transactions", {name: item for name, item in described.items() if name not in expired})
    complete = len(listed) == len(asked) and known.keys() | expired >= places.keys()
    # The id's next producer may have begun meanwhile: the transaction that was asked for counts.
    found = {producers[name]: item._replace(producer_id=producers[name]) for name, item in known.items()}
    return found, complete and await sees_all_ids(asker, asked)


async def sees_all_ids(asker: Asker, nodes: Iterable[int]) -> bool:
    """Return whether the client may describe any transactional id. If not, say so in the troubles.

    A list omits the ids that the client may not describe, without an error. An id that nobody uses shows it: only with
    the permission, the broker says that it does not exist. A DENY for some ids is not found.
    """
    for node in nodes:
        answer = (await asker.by_node("transactions", {UNUSED_ID: node}, requests.described)).get(UNUSED_ID)
        if answer is None:
            continue
        if isinstance(answer, requests.Failed) and answer.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            asker.troubles.append(Trouble("transactions", "this client may not describe all transactional ids"))
            return False
        return True
    return False


OpenIn = tuple[TopicPartition, ProducerInfo]
"""A partition, and a producer with an open transaction there."""


async def uncoordinated(
    asker: Asker,
    known: Mapping[int, WatchedTransaction],
    leaders: Mapping[TopicPartition, int],
    candidates: Iterable[OpenIn],
) -> list[OpenIn]:
    """Return the candidates that no coordinator will end. `known` is what the coordinators know (`transactions_of`).

    `leaders` has the node ids of the partitions. The partitions are asked again after the coordinators, because a
    transaction may have ended in between.
    """
    left = [(tp, each) for tp, each in candidates if not will_end(known.get(each.producer_id), tp)]
    places = {tp: leaders.get(tp, -1) for tp, _ in left}
    again = await asker.answers("producers", places, requests.producers)
    return [(tp, each) for tp, each in left if any(map(partial(_is_same, each), again.get(tp, ())))]


def _is_same(one: ProducerInfo, other: ProducerInfo) -> bool:
    """Return whether two answers are about the same open transaction."""
    return (one.producer_id, one.producer_epoch, one.transaction_start) == (
        other.producer_id,
        other.producer_epoch,
        other.transaction_start,
    )


def _is_missing(item: WatchedTransaction | requests.Failed) -> bool:
    return isinstance(item, requests.Failed) and item.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def texts(troubles: Iterable[Trouble]) -> list[str]:
    """Return troubles as people read them, each once."""
    return list(dict.fromkeys(f"{each.about}: {each.text}" for each in troubles))
