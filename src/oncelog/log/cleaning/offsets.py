"""The last offset of each key, in bounded memory. Source: Kafka's ``SkimpyOffsetMap``."""

from __future__ import annotations

from hashlib import blake2b

BYTES_PER_KEY = 144
"""Memory that one key takes: a digest, an offset, and their place in a dictionary (CPython, 64 bits)."""

_DIGEST = 16


class OffsetMap:
    """Key to the last offset that it was seen at, for at most ``max_keys`` keys.

    Keys are held as digests of 128 bits: that two keys share one is as unlikely as in Kafka, which holds their MD5.
    """

    __slots__ = ("_max_keys", "_offsets", "latest")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._offsets: dict[bytes, int] = {}
        self.latest = -1
        """Offset up to which the log has been taken in (inclusive)."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Note that ``key`` stands at ``offset``; return False where there is no room for it."""
        if len(self._offsets) >= self._max_keys:
            return False
        self._offsets[_digest(key)] = self.latest = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``, -1 if it was not seen."""
        return self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    """Return 16 bytes for a key; a shorter key stands for itself."""
    return key if len(key) < _DIGEST else blake2b(key, digest_size=_DIGEST).digest()
