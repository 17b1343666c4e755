from __future__ import annotations

import gzip

import cramjam
import pytest

from oncelog.protocol.compression import Codec, compress, decompress
from oncelog.protocol.errors import ErrorCode, ProtocolError
from support.scarce_memory import refuse_large_memory

TEXT = b"the quick brown fox " * 10_000
CODECS = list(Codec)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(range(256)) * 700])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_round_trip(codec: Codec, data: bytes, wrap: type) -> None:
    packed = compress(codec, wrap(data))
    assert bytes(decompress(codec, wrap(packed), len(data))) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("level", [1, 9])
def test_levels(codec: Codec, level: int) -> None:
    assert bytes(decompress(codec, compress(codec, TEXT, level), len(TEXT))) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_decompression_bomb_is_rejected(codec: Codec) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(ProtocolError) as caught:
        decompress(codec, packed, len(TEXT) - 1)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_content_larger_than_the_first_estimate(codec: Codec) -> None:
    data = bytes(3_000_000)
    assert bytes(decompress(codec, compress(codec, data), len(data))) == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize(
    "damage", [lambda d: d[:-3], lambda d: d[:9], lambda d: b"garbage" * 9, lambda d: b"\x82SNAPPY\x00"]
)
def test_damaged_data_is_corrupt(codec: Codec, damage: object) -> None:
    with pytest.raises(ProtocolError) as caught:
        decompress(codec, damage(bytes(compress(codec, TEXT))), 10 * len(TEXT))  # type: ignore[operator]
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_unknown_codec() -> None:
    with pytest.raises(ProtocolError) as caught:
        decompress(5, b"", 10)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_snappy_is_written_in_xerial_blocks_of_32_kib() -> None:
    packed = bytes(compress(Codec.SNAPPY, bytes(40_000)))
    assert packed[:16] == b"\x82SNAPPY\x00" + bytes.fromhex("0000000100000001")
    first = int.from_bytes(packed[16:20], "big")
    assert cramjam.snappy.decompress_raw_len(packed[20 : 20 + first]) == 32 * 1024


def test_plain_snappy_is_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), len(TEXT))) == TEXT


def test_concatenated_xerial_streams_are_read() -> None:
    one = bytes(compress(Codec.SNAPPY, b"one"))
    assert bytes(decompress(Codec.SNAPPY, one + one, 6)) == b"oneone"


def test_xerial_block_longer_than_the_data() -> None:
    packed = bytearray(compress(Codec.SNAPPY, b"abc"))
    packed[16:20] = (1 << 30).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="block of 1073741824 bytes"):
        decompress(Codec.SNAPPY, packed, 1 << 20)


def test_lz4_frames_have_independent_blocks_of_64_kib() -> None:
    """Kafka's Java reader rejects dependent blocks."""
    packed = bytes(compress(Codec.LZ4, TEXT))
    assert packed[:7] == bytes.fromhex("04224d18604082")
    assert bytes(cramjam.lz4.decompress(packed)) == TEXT


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 200_000])
def test_lz4_levels_produce_the_same_frame_format(size: int) -> None:
    text = b"".join(b"%d flew from %d to %d" % (i, i * i % 97, i**3 % 89) for i in range(size // 10))[:size]
    quick, thorough = (bytes(compress(Codec.LZ4, memoryview(text), level)) for level in (9, 12))
    assert bytes(decompress(Codec.LZ4, thorough, size)) == text
    assert thorough[:7] == quick[:7]
    assert len(thorough) < len(quick) or size <= 1


def test_lz4_frame_of_another_writer_is_read() -> None:
    assert bytes(decompress(Codec.LZ4, bytes(cramjam.lz4.compress(TEXT)), len(TEXT))) == TEXT


def test_gzip_members_may_be_concatenated() -> None:
    assert bytes(decompress(Codec.GZIP, gzip.compress(b"a") + gzip.compress(b"b"), 2)) == b"ab"


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_lack_of_memory_is_not_reported_as_a_disk_failure(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    data = compress_block(bytes(3_000_000)) if codec is Codec.SNAPPY else compress(codec, bytes(3_000_000))
    refuse_large_memory(monkeypatch)
    with pytest.raises(MemoryError, match="cannot reserve"):
        decompress(codec, data, 10_000_000)


def compress_block(data: bytes) -> bytes:
    """Return one block of snappy, without the framing of snappy-java."""
    return bytes(cramjam.snappy.compress_raw(data))
