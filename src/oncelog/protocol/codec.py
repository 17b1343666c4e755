"""Find the decoder and the encoder of a message class in one version. Both are generated at first use."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from oncelog.protocol.decoder import bounded_decoder, decoder
from oncelog.protocol.encoder import encoder
from oncelog.protocol.fields import DecodeError, MessageType, UnsupportedVersionError
from oncelog.protocol.primitives import Reader, Writer


class TooManyItemsError(DecodeError):
    """Raised for a message with more array elements and tagged fields than the caller allows."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The decoder and the encoder of one message class in one version."""

    decode: Reader
    encode: Writer
    cls: MessageType
    version: int

    def decode_at_most(self, view: memoryview, pos: int, items: int) -> tuple[Any, int]:
        """Decode like `decode`, but at most `items` array elements and tagged fields. Raises TooManyItemsError."""
        return _bounded(self.cls, self.version)(view, pos, items)


@cache
def codec(cls: MessageType, version: int) -> Codec:
    """Return the codec of a message class. Raises UnsupportedVersionError if the class has no such version."""
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        message = f"{cls.__name__} v{version} is not supported; versions are {cls.MIN_VERSION} to {cls.MAX_VERSION}"
        raise UnsupportedVersionError(message)
    flexible = version >= cls.FLEXIBLE_SINCE
    inner = decoder(cls, version, flexible)

    def decode(view: memoryview, pos: int) -> tuple[Any, int]:
        try:
            return inner(view, pos)
        except (struct.error, IndexError) as error:
            raise DecodeError(f"{cls.__name__} v{version} is truncated") from error

    return Codec(decode, encoder(cls, version, flexible), cls, version)


@cache
def _bounded(cls: MessageType, version: int) -> Callable[[memoryview, int, int], tuple[Any, int]]:
    inner = bounded_decoder(cls, version, version >= cls.FLEXIBLE_SINCE)

    def decode(view: memoryview, pos: int, items: int) -> tuple[Any, int]:
        left = items

        def spend(count: int) -> None:
            nonlocal left
            left -= count
            if left < 0:
                raise TooManyItemsError(f"{cls.__name__} v{version} has more than {items} array elements")

        try:
            message, end = inner(view, pos, spend)
        except (struct.error, IndexError) as error:
            raise DecodeError(f"{cls.__name__} v{version} is truncated") from error
        return message, end

    return decode
