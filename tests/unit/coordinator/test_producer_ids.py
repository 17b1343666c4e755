from __future__ import annotations

import pytest

from oncelog.coordinator.producer_ids import (
    AnswerLostError,
    ProducerIdBlock,
    ProducerIds,
    ProducerIdsExhaustedError,
    acquire_block,
    encode_block,
    next_block,
    parse_block,
)
from oncelog.protocol.errors import ErrorCode, ProtocolError

KAFKAS = b'{"version":1,"broker":35,"block_start":"4000","block_end":"4999"}'


class Store:
    """A node that can lose concurrent writes and answers. `script` has one entry for each write."""

    def __init__(self, data: bytes = b"", script: tuple[str, ...] = ()) -> None:
        self.data = data
        self.version = 0
        self.script = list(script)
        self.rival = 0

    def read(self) -> tuple[bytes, int]:
        return self.data, self.version

    def put(self, data: bytes) -> None:
        self.data, self.version = data, self.version + 1

    def write(self, data: bytes, version: int) -> bool:
        step = self.script.pop(0) if self.script else "write"
        if step in ("rival", "rival and lost"):
            self.put(encode_block(next_block(self.data, 99)))
        if step in ("lost before", "rival and lost"):
            raise AnswerLostError
        if version != self.version:
            return False
        self.put(data)
        if step == "lost after":
            raise AnswerLostError
        if step == "lost after, then a rival":
            self.put(encode_block(next_block(self.data, 99)))
            raise AnswerLostError
        return True


def test_json_equals_kafkas_byte_for_byte() -> None:
    block = ProducerIdBlock(35, 4000, 4999)
    assert encode_block(block) == KAFKAS
    assert parse_block(KAFKAS) == block


@pytest.mark.parametrize(
    "data", [b"{}", b"[]", b"x", b'{"version":2,"broker":1,"block_start":"0","block_end":"999"}', b'{"version":1}']
)
def test_foreign_node_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_block(data)


def test_blocks_follow_one_another() -> None:
    assert next_block(b"", 1) == (1, 0, 999)
    assert next_block(encode_block(ProducerIdBlock(1, 0, 999)), 2) == (2, 1000, 1999)
    assert next_block(KAFKAS, 1) == (1, 5000, 5999)


def test_blocks_end_at_the_largest_int64() -> None:
    last = 2**63 - 1
    just = encode_block(ProducerIdBlock(1, 0, last - 1000))
    assert next_block(just, 1) == (1, last - 999, last)
    for end in (last - 999, last):
        with pytest.raises(ProducerIdsExhaustedError, match="all producer ids are used"):
            next_block(encode_block(ProducerIdBlock(1, 0, end)), 1)


@pytest.mark.parametrize(
    ("script", "block", "node"),
    [
        ((), (1, 0, 999), (1, 0, 999)),
        (("rival",), (1, 1000, 1999), (1, 1000, 1999)),
        (("rival", "rival", "rival"), (1, 3000, 3999), (1, 3000, 3999)),
        (("lost after",), (1, 0, 999), (1, 0, 999)),
        (("lost before",), (1, 0, 999), (1, 0, 999)),
        (("rival and lost",), (1, 1000, 1999), (1, 1000, 1999)),
        (("lost after, then a rival",), (1, 2000, 2999), (1, 2000, 2999)),
    ],
)
def test_concurrent_writes_and_lost_answers(
    script: tuple[str, ...], block: tuple[int, int, int], node: tuple[int, int, int]
) -> None:
    store = Store(script=script)
    assert acquire_block(store, 1) == block
    assert parse_block(store.data) == node


def test_block_is_not_shared_with_another_writer_of_the_same_bytes() -> None:
    """A zombie of the same broker id wrote the same bytes.

    The rejection, not the bytes, shows which one has the block.
    """
    store = Store()

    def twin(data: bytes, version: int) -> bool:
        del store.write
        store.put(data)
        return Store.write(store, data, version)

    store.write = twin  # type: ignore[method-assign]
    assert acquire_block(store, 1) == (1, 1000, 1999)


def test_ids_of_a_block_are_used_in_order_before_another_block_is_requested() -> None:
    asked: list[int] = []
    ids = ProducerIds(lambda: asked.append(ids.remaining))
    with pytest.raises(ProtocolError) as caught:
        ids.take()
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert asked == [0]
    ids.add(ProducerIdBlock(1, 0, 999))
    assert [ids.take() for _ in range(999)] == list(range(999))
    assert asked == [0]
    with pytest.raises(RuntimeError):
        ids.add(ProducerIdBlock(1, 1000, 1999))
    assert ids.take() == 999
    assert asked == [0, 0]
    ids.add(ProducerIdBlock(1, 5000, 5999))
    assert ids.take() == 5000
