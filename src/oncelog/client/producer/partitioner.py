"""Choose the partition of a record.

A partitioner is any callable `(topic, key, value, partitions) -> int`, `partitions` being their number. Built in:
"default" (murmur2 of the key as the Java client does it; without a key, one partition until a batch's worth of bytes
went there, KIP-794), also called "murmur2"; "consistent_random" (CRC-32 of the key, as librdkafka's default does it);
and "round_robin".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any
from zlib import crc32

from oncelog.errors import ConfigError

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 with the Java client's seed, as an unsigned number."""
    size = len(data)
    h = _SEED ^ size
    end = size & ~3
    for pos in range(0, end, 4):
        k = int.from_bytes(data[pos : pos + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    tail = data[end:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=65_536)
def key_hash(key: bytes) -> int:
    """Return the hash of a key: murmur2 without its sign. Modulo the number of partitions, it is the partition."""
    return murmur2(key) & 0x7FFFFFFF


class Sticky:
    """The default partitioner. `choose(n)` picks a number below n at random; `batch_bytes` is batch.size.

    `weights(topic, partitions)` returns how often to choose each partition, or None for equally often.
    """

    def __init__(
        self,
        batch_bytes: int,
        choose: Callable[[int], int],
        *,
        ignore_keys: bool = False,
        weights: Callable[[str, int], Sequence[int] | None] = lambda topic, partitions: None,
    ) -> None:
        self._limit = max(batch_bytes, 1)
        self._choose = choose
        self.ignore_keys = ignore_keys
        self._weights = weights
        self._current: dict[str, list[int]] = {}
        self._credits: dict[str, list[float]] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        """Return the partition of a record."""
        if key is not None and not self.ignore_keys:
            return key_hash(key) % partitions
        return self.take(topic, 10 if value is None else len(value) + 10, partitions)

    def take(self, topic: str, size: int, partitions: int, *, in_turn: bool = False) -> int:
        """Return the partition of `size` bytes without a key. `in_turn`: not at random, but evenly by the weights."""
        current = self._current.get(topic)
        if current is None or current[1] >= self._limit or current[0] >= partitions:
            following = self._next_in_turn if in_turn else self._next
            partition = following(topic, None if current is None else current[0], partitions)
            current = self._current[topic] = [partition, 0]
        current[1] += size
        return current[0]

    def _next(self, topic: str, last: int | None, partitions: int) -> int:
        weights = self._weights(topic, partitions)
        if weights is not None:
            sums = list(accumulate(weights))
            return bisect_right(sums, self._choose(sums[-1]))
        partition = self._choose(partitions)
        return (partition + 1) % partitions if partition == last and partitions > 1 else partition

    def _next_in_turn(self, topic: str, last: int | None, partitions: int) -> int:
        """Choose by smooth weighted round robin: each partition gains its share, and the one with the most pays 1."""
        weights = self._weights(topic, partitions) or [1] * partitions
        held = self._credits.get(topic, [])
        if len(held) != partitions:
            held = self._credits[topic] = [0.0] * partitions
        total = sum(weights)
        first = self._choose(partitions) if last is None else last + 1
        best = -1
        for index in chain(range(first, partitions), range(min(first, partitions))):
            held[index] += weights[index] / total
            if weights[index] and (best < 0 or held[index] > held[best]):
                best = index
        held[best] -= 1
        return best


def spread(queues: Sequence[int], usable: Sequence[bool]) -> list[int] | None:
    """Return weights that favour short queues and exclude unusable partitions (KIP-794, adaptive part).

    None means equal weights. `queues` has the number of waiting batches of each partition.
    """
    if not any(usable) or (all(usable) and len(set(queues)) <= 1):
        return None
    longest = max(queue for queue, can in zip(queues, usable, strict=True) if can) + 1
    return [longest - queue if can else 0 for queue, can in zip(queues, usable, strict=True)]


class RoundRobin:
    """Choose one partition after the other and ignore keys: 60 records over 5 partitions are 12 each."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        """Return the partition of a record."""
        return self.take(topic, 1) % partitions

    def take(self, topic: str, count: int) -> int:
        """Take `count` turns. Return the number of the first."""
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + count
        return turn


def consistent_random(keyless: Partitioner) -> Partitioner:
    """Return librdkafka's default partitioner: CRC-32 of the key. `keyless` places records without key or with b""."""

    def choose(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return crc32(key) % partitions if key else keyless(topic, None, value, partitions)

    return choose


def make_partitioner(
    options: Mapping[str, Any],
    choose: Callable[[int], int],
    weights: Callable[[str, int], Sequence[int] | None] = lambda topic, partitions: None,
) -> Partitioner:
    """Return the partitioner that the option `partitioner` names, or the user's callable. Raises ConfigError."""
    option = options["partitioner"]
    if callable(option):
        found: Partitioner = option
        return found
    if option == "round_robin":
        return RoundRobin()
    if option not in ("default", "murmur2", "consistent_random"):
        raise ConfigError(
            f"partitioner = {option!r}: it must be default, murmur2, consistent_random, round_robin or a callable"
        )
    sticky = Sticky(options["batch_size"], choose, ignore_keys=options["partitioner_ignore_keys"], weights=weights)
    return consistent_random(sticky) if option == "consistent_random" else sticky
