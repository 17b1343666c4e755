"""Reserve blocks of a thousand producer ids for this broker, in the metadata tree."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from oncelog.broker.workers import Runtime
from oncelog.cluster.store import (
    BadVersionError,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    StoreError,
)
from oncelog.coordinator.producer_ids import BLOCK_PATH, AnswerLostError, ProducerIds, acquire_block
from oncelog.protocol.errors import ErrorCode, ProtocolError


class BlockNode:
    """The node of the producer id blocks in the tree. All methods block."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def read(self) -> tuple[bytes, int]:
        """Return the newest block and its version. Create the node if it does not exist."""
        try:
            node = self._store.get(BLOCK_PATH)
        except NoNodeError:
            with suppress(NodeExistsError):  # another broker has created it in the meantime
                self._store.create(BLOCK_PATH)
            node = self._store.get(BLOCK_PATH)
        return node.data, node.version

    def write(self, data: bytes, version: int) -> bool:
        """Write the block if the node still has this version. Return False if it has another version.

        Raises AnswerLostError if the outcome is not known.
        """
        try:
            self._store.set(BLOCK_PATH, data, version)
        except BadVersionError:
            return False
        except OutcomeUnknownError as error:
            raise AnswerLostError from error
        return True


class ProducerIdBlocks:
    """Reserve blocks of producer ids ahead of their use."""

    def __init__(self, store: MetadataStore, node_id: int, runtime: Runtime) -> None:
        self.ids = ProducerIds(self.reserve)
        self._store = BlockNode(store)
        self._node_id = node_id
        self._workers = runtime.workers
        self._logger = runtime.logger
        self._reserving: asyncio.Task[None] | None = None
        self._closed = False

    def reserve(self) -> None:
        """Reserve the next block in the background, unless that is already in progress."""
        if self._reserving is None and not self._closed:
            self._reserving = self._workers.task(self._reserve(), "producer id block")
            self._reserving.add_done_callback(self._reserved)

    async def available(self) -> None:
        """Wait for the next block if the last one is used up. Raises COORDINATOR_LOAD_IN_PROGRESS."""
        if self.ids.remaining:
            return
        self.reserve()
        assert self._reserving is not None
        try:
            await asyncio.shield(self._reserving)
        except StoreError as error:
            message = f"the broker cannot reserve producer ids: {error!r}"
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message) from error

    def close(self) -> None:
        """Stop reserving blocks."""
        self._closed = True
        if self._reserving is not None:
            self._reserving.cancel()

    async def _reserve(self) -> None:
        block = await self._workers.write_store(acquire_block, self._store, self._node_id)
        self.ids.add(block)
        self._logger.debug("reserved the producer ids %d to %d", block.start, block.end)

    def _reserved(self, task: asyncio.Task[Any]) -> None:
        self._reserving = None
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("cannot reserve a block of producer ids: %r", task.exception())
