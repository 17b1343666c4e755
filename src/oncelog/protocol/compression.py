"""Compress and decompress record batches with the five codecs of the record batch format v2.

Input and output are bytes-like. The framing is that of Kafka's Java client:

* gzip: RFC 1952, several members are allowed on reading;
* snappy: the xerial block framing of snappy-java (written with 32 KiB blocks); a plain snappy block is
  read too;
* lz4: the LZ4 frame format with independent blocks of 64 KiB (the Java client rejects dependent ones), no
  checksums;
* zstd: one or more zstd frames.

Decompression rejects data that would grow beyond ``limit`` bytes, whatever a header claims.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import IntEnum
from struct import Struct

from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.memory import reserved

Buffer = bytes | bytearray | memoryview

_INT32 = Struct(">i")
_UINT32_LE = Struct("<I")

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + _INT32.pack(1) + _INT32.pack(1)
_XERIAL_MAGIC_HEAD = _INT32.unpack_from(_XERIAL_MAGIC)[0]
_XERIAL_BLOCK = 32 * 1024

# Magic, flags (version 1, independent blocks), block size 64 KiB, and the checksum of just these flags.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_END = bytes(4)
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_WITH_CHECKSUMS = 0x70
"""Flags of a frame that differs from ours only in the checksum after each block."""

_ZSTD_DEFAULT_LEVEL = 3
_GZIP_DEFAULT_LEVEL = 6
_LZ4_DEFAULT_LEVEL = 9
_GZIP_WINDOW = 31
_GZIP_STEP = 1024 * 1024

_OUTPUT_FULL = "failed to write whole buffer"
_FIRST_GUESS = 16
_MIN_OUTPUT = 64 * 1024
_GROWTH = 8
_MAPPED_BYTES = 1024 * 1024
"""Outputs of at least this size go into mapped memory."""


class Codec(IntEnum):
    """Compression codec, numbered as in the low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooMuchDataError(ProtocolError):
    """Raised if the decompressed data would be larger than the limit."""


def compress(codec: Codec | int, data: Buffer, level: int | None = None) -> Buffer:
    """Return ``data`` compressed with ``codec``.

    ``level`` is Kafka's ``compression.<type>.level``, or None for the default. Snappy ignores it.
    """
    return _COMPRESS[codec](data, level)


def decompress(codec: Codec | int, data: Buffer, limit: int) -> Buffer:
    """Return ``data`` decompressed.

    Raises ``ProtocolError(CORRUPT_MESSAGE)`` if the data is malformed or would grow beyond ``limit`` bytes,
    ``ProtocolError(UNSUPPORTED_COMPRESSION_TYPE)`` for an unknown codec, and ``MemoryError`` if there is no memory for
    the output.
    """
    decoder = _DECOMPRESS.get(codec)
    if decoder is None:
        raise ProtocolError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {int(codec)}")
    return decoder(data, limit)


def _corrupt(codec: str, reason: object) -> ProtocolError:
    return ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"corrupt {codec} data: {reason}")


def _too_large(codec: str, limit: int) -> TooMuchDataError:
    return TooMuchDataError(ErrorCode.CORRUPT_MESSAGE, f"decompressed {codec} data exceeds the limit of {limit} bytes")


def _compress_none(data: Buffer, level: int | None) -> Buffer:
    return data


def _decompress_none(data: Buffer, limit: int) -> Buffer:
    if len(data) > limit:
        raise _too_large("uncompressed", limit)
    return data


def _compress_gzip(data: Buffer, level: int | None) -> Buffer:
    import cramjam

    if level is None or level < 0:
        level = _GZIP_DEFAULT_LEVEL
    return bytes(cramjam.gzip.compress(data, level=level))


def _decompress_gzip(data: Buffer, limit: int) -> Buffer:
    out = bytearray()
    view = memoryview(data)
    member = zlib.decompressobj(wbits=_GZIP_WINDOW)
    pos = 0
    rest: Buffer = b""
    more = False
    while True:
        if not rest and not more:
            if pos >= len(view):
                if member.eof:
                    return out
                raise _corrupt("gzip", "truncated")
            rest = view[pos : pos + _GZIP_STEP]
            pos += len(rest)
        if member.eof:
            member = zlib.decompressobj(wbits=_GZIP_WINDOW)
        # Decompress in steps, because all threads wait while the interpreter copies the result of a step.
        most = min(_GZIP_STEP, limit + 1 - len(out))
        try:
            piece = member.decompress(rest, most)
        except zlib.error as error:
            raise _corrupt("gzip", error) from error
        out += piece
        if len(out) > limit:
            raise _too_large("gzip", limit)
        rest = member.unused_data if member.eof else member.unconsumed_tail
        more = len(piece) == most and not member.eof


def _compress_snappy(data: Buffer, level: int | None) -> Buffer:
    import cramjam

    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += _INT32.pack(len(block))
        out += block
    return out


def _decompress_snappy(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(view, limit)
    out = bytearray()
    pos = len(_XERIAL_HEADER)
    end = len(view)
    if pos > end:
        raise _corrupt("snappy", "truncated header")
    while pos < end:
        if end - pos < 4:
            raise _corrupt("snappy", "truncated block length")
        (size,) = _INT32.unpack_from(view, pos)
        if size == _XERIAL_MAGIC_HEAD:  # streams may be concatenated, each with its own header
            pos += len(_XERIAL_HEADER)
            continue
        pos += 4
        if size < 0 or size > end - pos:
            raise _corrupt("snappy", f"block of {size} bytes, but only {end - pos} are left")
        out += _snappy_block(view[pos : pos + size], limit - len(out))
        pos += size
    return out


def _snappy_block(view: memoryview, limit: int) -> Buffer:
    import cramjam

    try:
        # A block begins with its decompressed length, so it can be checked before memory is allocated.
        size = cramjam.snappy.decompress_raw_len(view)
        if size > limit:
            raise _too_large("snappy", limit)
        out = _output(size)
        written = cramjam.snappy.decompress_raw_into(view, out)
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from error
    return out[:written]


def _compress_lz4(data: Buffer, level: int | None) -> Buffer:
    import cramjam

    if level not in (None, _LZ4_DEFAULT_LEVEL):  # Kafka's default level selects the fast compressor
        return _compress_lz4_high(data, level)
    view = memoryview(data)
    out = bytearray(_LZ4_HEADER)
    for start in range(0, len(view), _LZ4_BLOCK):
        block = view[start : start + _LZ4_BLOCK]
        packed = memoryview(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += _UINT32_LE.pack(len(packed))
            out += packed
        else:
            out += _UINT32_LE.pack(len(block) | _LZ4_STORED)
            out += block
    out += _LZ4_END
    return out


def _compress_lz4_high(data: Buffer, level: int | None) -> Buffer:
    """Compress with a level.

    Only cramjam's frame compressor accepts a level, not its block compressor. So compress to a frame, and copy its
    blocks without their checksums into a frame like those of `_compress_lz4`.
    """
    import cramjam

    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    frame = memoryview(compressor.finish())
    if frame[4] != _LZ4_WITH_CHECKSUMS:
        return bytes(frame)  # another version of cramjam chose other flags; any reader accepts its frame
    out, position = bytearray(_LZ4_HEADER), len(_LZ4_HEADER)
    while size := _UINT32_LE.unpack_from(frame, position)[0]:
        end = position + 4 + (size & ~_LZ4_STORED)
        out += frame[position:end]
        position = end + 4
    out += _LZ4_END
    return out


def _decompress_lz4(data: Buffer, limit: int) -> Buffer:
    import cramjam

    return _decompress_growing("lz4", cramjam.lz4.decompress_into, data, limit)


def _compress_zstd(data: Buffer, level: int | None) -> Buffer:
    import cramjam

    return bytes(cramjam.zstd.compress(data, level=_ZSTD_DEFAULT_LEVEL if level is None else level))


def _decompress_zstd(data: Buffer, limit: int) -> Buffer:
    import cramjam

    return _decompress_growing("zstd", cramjam.zstd.decompress_into, data, limit)


def _decompress_growing(
    codec: str, decompress_into: Callable[[Buffer, memoryview], int], data: Buffer, limit: int
) -> Buffer:
    """Decompress into larger and larger buffers, because these formats need not state the size of their content.

    Only a buffer that is too small causes a retry. Any other error means that the data is corrupt.
    """
    import cramjam

    size = min(limit, max(_MIN_OUTPUT, _FIRST_GUESS * len(data)))
    while True:
        out = _output(size)
        try:
            written = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if str(error) != _OUTPUT_FULL:
                raise _corrupt(codec, error) from error
            if size >= limit:
                raise _too_large(codec, limit) from error
            size = min(limit, size * _GROWTH)
        else:
            return out[:written]


def _output(size: int) -> memoryview:
    """Return memory for decompressed data."""
    return reserved(size) if size >= _MAPPED_BYTES else memoryview(bytearray(size))


_COMPRESS: dict[int, Callable[[Buffer, int | None], Buffer]] = {
    Codec.NONE: _compress_none,
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}

_DECOMPRESS: dict[int, Callable[[Buffer, int], Buffer]] = {
    Codec.NONE: _decompress_none,
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}
