"""Count what clients use against their quotas. Source: Kafka's `ClientQuotaManager` and its subclasses.

The limits are those of the newest image, so a change counts from the next request on. Each broker counts for itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

from oncelog.broker.quotas.rates import TokenBucket, Windows
from oncelog.cluster.image import MetadataCache
from oncelog.cluster.quotas import CONSUMER, MUTATIONS, PRODUCER, REQUESTS, Owner

IDLE_S = 3600.0
"""Forget what a client has used if it has used nothing for this long."""
MOST_OWNERS = 10_000
"""Remember what this many users and client ids have used, for each kind of quota. Clients may invent client ids."""
LONGEST_NAME = 256
"""Longer names of users and client ids are remembered by a hash."""


class ClientQuotas:
    """What the clients of one broker have used, by user and client id. Times are seconds."""

    def __init__(
        self, cache: MetadataCache, windows: Windows, mutation_windows: Windows, now: Callable[[], float]
    ) -> None:
        """`now` is a monotonic clock. `mutation_windows` are those of `controller_mutation_rate`."""
        self.now = now
        self.windows = windows
        self._cache = cache
        burst_s = windows.complete_s
        self._buckets = {
            PRODUCER: _Buckets(burst_s),
            CONSUMER: _Buckets(burst_s),
            REQUESTS: _Buckets(burst_s, debt_s=windows.all_s),
            MUTATIONS: _Buckets(mutation_windows.all_s),
        }

    def record(self, key: str, user: str, client_id: str, amount: float) -> float:
        """Add an amount, and return how long the client must pause."""
        found = self._cache.image.quotas.find(key, user, client_id)
        if found is None:
            return 0.0
        limit, owner = found
        now = self.now()
        return self._buckets[key].of(owner, now).take(amount, limit, now)

    def admit(self, key: str, user: str, client_id: str, amount: float) -> tuple[bool, float]:
        """Add an amount if the client may use it now. Return whether it may, and how long the client must pause.

        An amount above the burst is admitted after a long pause. (In Kafka, such a consumer stops.)
        """
        found = self._cache.image.quotas.find(key, user, client_id)
        if found is None:
            return True, 0.0
        limit, owner = found
        now = self.now()
        return self._buckets[key].of(owner, now).admit(amount, limit, now)

    def most_at_once(self, key: str, user: str, client_id: str) -> float | None:
        """Return the largest amount that needs no pause if nothing was used before. None if there is no limit."""
        found = self._cache.image.quotas.find(key, user, client_id)
        return None if found is None else found[0] * self.windows.complete_s

    def mutate(self, user: str, client_id: str, amount: int, *, strict: bool) -> tuple[bool, float]:
        """Count created and deleted partitions. Return whether they are admitted, and how long the client must pause.

        With `strict`, they are rejected while the client owes tokens. Otherwise, the client only pauses.
        """
        found = self._cache.image.quotas.find(MUTATIONS, user, client_id)
        if found is None:
            return True, 0.0
        limit, owner = found
        now = self.now()
        bucket = self._buckets[MUTATIONS].of(owner, now)
        if strict:
            delay = bucket.delay(limit, now)
            if delay > 0:
                return False, delay
            bucket.take(amount, limit, now)
            return True, 0.0
        return True, bucket.take(amount, limit, now)

    @property
    def remembered(self) -> int:
        """Return how many buckets the broker remembers."""
        return sum(map(len, self._buckets.values()))


class _Buckets:
    """The buckets of one kind of quota, by their owners. The least recently used one is first."""

    __slots__ = ("_burst_s", "_debt_s", "_kept")

    def __init__(self, burst_s: float, debt_s: float = math.inf) -> None:
        self._burst_s = burst_s
        self._debt_s = debt_s
        self._kept: OrderedDict[Owner, tuple[TokenBucket, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, owner: Owner, now: float) -> TokenBucket:
        """Return the bucket of an owner. Forget those of owners that are idle, or too many."""
        name = _short(owner[0]), _short(owner[1])
        kept = self._kept
        found = kept.get(name)
        bucket = TokenBucket(self._burst_s, self._debt_s) if found is None else found[0]
        kept[name] = bucket, now
        kept.move_to_end(name)
        while len(kept) > MOST_OWNERS or now - next(iter(kept.values()))[1] >= IDLE_S:
            kept.popitem(last=False)
        return bucket


def _short(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:16]} {sha256(name.encode(errors='surrogatepass')).hexdigest()}"
