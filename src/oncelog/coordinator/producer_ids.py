"""Allocate producer ids to brokers in blocks of 1,000, by compare-and-set on one node of the shared metadata.

A block includes both ends. The first one is 0-999. The node holds the newest block as JSON in Kafka's format
(`ZooKeeperProducerIdManager`, `ProducerIdBlockZNode`). No id is allocated twice: after a crash, the rest of a block is
lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, Protocol

from oncelog.protocol.errors import ErrorCode, ProtocolError

BLOCK_SIZE = 1000
"""Ids in a block."""

BLOCK_PATH = "/latest_producer_id_block"
"""The metadata node that holds the newest block."""

_MAX_ID = 2**63 - 1
_FORMAT_VERSION = 1


class ProducerIdBlock(NamedTuple):
    """The ids from `start` to `end`, both included, which are allocated to `broker`."""

    broker: int
    start: int
    end: int


class ProducerIdsExhaustedError(ProtocolError):
    """All ids below 2^63 are allocated."""

    def __init__(self, latest: ProducerIdBlock) -> None:
        message = f"all producer ids are used: the latest block ends at {latest.end}"
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)


class AnswerLostError(Exception):
    """The store does not know whether a write succeeded."""


class BlockStore(Protocol):
    """The node at `BLOCK_PATH`: bytes with a version, which each write increments."""

    def read(self) -> tuple[bytes, int]:
        """Return the node's bytes, empty before the first block, and their version."""

    def write(self, data: bytes, version: int) -> bool:
        """Replace the bytes of exactly this version. Return False if the node has another version.

        Raises AnswerLostError if the result is unknown.
        """


def parse_block(data: bytes) -> ProducerIdBlock:
    """Return the block in the node's JSON. Raises ValueError if it does not contain one."""
    fields = json.loads(data)
    try:
        if fields["version"] != _FORMAT_VERSION:
            raise ValueError(
                f"the producer id block has version {fields['version']!r}, but only {_FORMAT_VERSION} is supported"
            )
        return ProducerIdBlock(int(fields["broker"]), int(fields["block_start"]), int(fields["block_end"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"invalid producer id block: {data!r}") from error


def encode_block(block: ProducerIdBlock) -> bytes:
    """Return the node's JSON exactly as Kafka writes it. Ids are strings, because JSON numbers end at 2^53."""
    fields = {
        "version": _FORMAT_VERSION,
        "broker": block.broker,
        "block_start": str(block.start),
        "block_end": str(block.end),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def next_block(data: bytes, broker: int) -> ProducerIdBlock:
    """Return the block after the one in `data`. Raises ProducerIdsExhaustedError after the last block."""
    if not data:
        return ProducerIdBlock(broker, 0, BLOCK_SIZE - 1)
    latest = parse_block(data)
    if latest.end > _MAX_ID - BLOCK_SIZE:
        raise ProducerIdsExhaustedError(latest)
    return ProducerIdBlock(broker, latest.end + 1, latest.end + BLOCK_SIZE)


def acquire_block(store: BlockStore, broker: int) -> ProducerIdBlock:
    """Allocate the next block to `broker`. Other brokers may do the same at the same time.

    If another broker was faster, this starts over. If the result of a write is unknown, the write has succeeded if the
    node holds exactly these bytes in the next version. Otherwise, this starts over. Other errors of the store are
    raised.
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
    """The ids that this broker has left. It calls `used_up` when the last one is taken."""

    def __init__(self, used_up: Callable[[], None]) -> None:
        self._used_up = used_up
        self._next = 0
        self._end = -1

    @property
    def remaining(self) -> int:
        """Return how many ids are left."""
        return self._end - self._next + 1

    def add(self, block: ProducerIdBlock) -> None:
        """Use a new block. The old one must be used up."""
        if self.remaining:
            raise RuntimeError(f"{self.remaining} ids of the old block are left")
        self._next, self._end = block.start, block.end

    def take(self) -> int:
        """Return a new id. Raises COORDINATOR_LOAD_IN_PROGRESS, which all clients retry, while none is left."""
        if not self.remaining:
            self._used_up()
            raise ProtocolError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the broker is reserving a block of producer ids"
            )
        producer_id = self._next
        self._next += 1
        if not self.remaining:
            self._used_up()
        return producer_id
