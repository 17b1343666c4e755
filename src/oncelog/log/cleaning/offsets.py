"""The last offset of each key, in bounded memory. Source: Kafka's ``SkimpyOffsetMap``."""

from __future__ import annotations

from hashlib import blake2b

BYTES_PER_KEY = 144
"""The memory of one key: a digest, an offset, and their entry in a dictionary (CPython, 64 bits)."""

_DIGEST = 16


class OffsetMap:
    """Map at most ``max_keys`` keys to their last offsets.

    The map has digests of 128 bits. A collision is as unlikely as in Kafka, which uses MD5.
    """

    __slots__ = ("_max_keys", "_offsets", "latest")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._offsets: dict[bytes, int] = {}
        self.latest = -1
        """The map contains all keys up to this offset (inclusive)."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Set the last offset of ``key``. Return False if the map is full."""
        if len(self._offsets) >= self._max_keys:
            return False
        self._offsets[_digest(key)] = self.latest = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the last offset of ``key``, -1 if the map does not contain it."""
        return self._offsets.get(_digest(key), -1)


def _digest(key: bytes) -> bytes:
    """Return the digest of a key. A key shorter than a digest is its own digest."""
    return key if len(key) < _DIGEST else blake2b(key, digest_size=_DIGEST).digest()
