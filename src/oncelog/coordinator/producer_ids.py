"""Producer ids: allotted to brokers in blocks of 1,000, by compare-and-set on one node of the shared
metadata.

A block is inclusive at both ends, the first is 0-999, and the node holds the newest one as JSON in Kafka's
form (`ZooKeeperProducerIdManager`, `ProducerIdBlockZNode`). An id is never handed out twice: what a crash
leaves of a block is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, Protocol

from oncelog.protocol.errors import ErrorCode, ProtocolError

BLOCK_SIZE = 1000
"""Ids in a block."""

BLOCK_PATH = "/latest_producer_id_block"
"""The node of the versioned tree that holds the newest block."""

_MAX_ID = 2**63 - 1
_FORMAT_VERSION = 1


class ProducerIdBlock(NamedTuple):
    """The ids from `start` to `end`, both included, which belong to `broker`."""

    broker: int
    start: int
    end: int


class ProducerIdsExhaustedError(ProtocolError):
    """There is no block left below 2^63."""

    def __init__(self, latest: ProducerIdBlock) -> None:
        message = f"producer ids are used up: the latest block ends at {latest.end}"
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class AnswerLostError(Exception):
    """The store cannot say whether it has carried out a write."""


class BlockStore(Protocol):
    """The node at `BLOCK_PATH`: bytes with a version that a write raises by one."""

    def read(self) -> tuple[bytes, int]:
        """The node's bytes, empty before the first block, and their version."""

    def write(self, data: bytes, version: int) -> bool:
        """Writes over exactly that version: False when the node has another one, AnswerLostError when
        unknown.
        """


def parse_block(data: bytes) -> ProducerIdBlock:
    """A block from the node's JSON; ValueError when it is not one."""
    fields = json.loads(data)
    try:
        if fields["version"] != _FORMAT_VERSION:
            raise ValueError(f"producer id block of version {fields['version']!r}, not {_FORMAT_VERSION}")
        return ProducerIdBlock(int(fields["broker"]), int(fields["block_start"]), int(fields["block_end"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a producer id block: {data!r}") from error


def encode_block(block: ProducerIdBlock) -> bytes:
    """The node's JSON, byte for byte as Kafka writes it (ids as strings: JSON numbers end at 2^53)."""
    fields = {
        "version": _FORMAT_VERSION,
        "broker": block.broker,
        "block_start": str(block.start),
        "block_end": str(block.end),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def next_block(data: bytes, broker: int) -> ProducerIdBlock:
    """The block that follows the one in `data`; ProducerIdsExhaustedError when int64 has no room for it."""
    if not data:
        return ProducerIdBlock(broker, 0, BLOCK_SIZE - 1)
    latest = parse_block(data)
    if latest.end > _MAX_ID - BLOCK_SIZE:
        raise ProducerIdsExhaustedError(latest)
    return ProducerIdBlock(broker, latest.end + 1, latest.end + BLOCK_SIZE)


def acquire_block(store: BlockStore, broker: int) -> ProducerIdBlock:
    """Takes the next block for `broker`, however many others try at the same time.

    A lost race starts over. A write whose answer was lost has succeeded if the node holds exactly our bytes
    at the very next version; otherwise it starts over as well. Whatever else the store raises ends the
    attempt.
    """
    while True:
        data, version = store.read()
        block = next_block(data, broker)
        ours = encode_block(block)
        try:
            if store.write(ours, version):
                return block
        except AnswerLostError:
            if store.read() == (ours, version + 1):
                return block


class ProducerIds:
    """The ids that this broker has left; `used_up` is called when the last one is taken."""

    def __init__(self, used_up: Callable[[], None]) -> None:
        self._used_up = used_up
        self._next = 0
        self._end = -1

    @property
    def remaining(self) -> int:
        """How many ids can be taken."""
        return self._end - self._next + 1

    def add(self, block: ProducerIdBlock) -> None:
        """Goes on with a new block; the old one must be used up."""
        if self.remaining:
            raise RuntimeError(f"a new block while {self.remaining} ids of the old one are left")
        self._next, self._end = block.start, block.end

    def take(self) -> int:
        """A new id; COORDINATOR_LOAD_IN_PROGRESS, which clients of every age retry, while there is none."""
        if not self.remaining:
            self._used_up()
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "waiting for a block of producer ids")
        producer_id = self._next
        self._next += 1
        if not self.remaining:
            self._used_up()
        return producer_id
