"""Transactions on this broker: the shell around the coordinators, their markers, and the producer ids at hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oncelog.broker.coordinators.shell import APPEND_ERRORS, CoordinatorShell
from oncelog.broker.requests.apis import TRANSACTION_VERSION_FEATURE
from oncelog.broker.turns import counted
from oncelog.cluster.replica import Replica
from oncelog.cluster.tree import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
    Tree,
    TreeError,
)
from oncelog.coordinator.effects import Markers
from oncelog.coordinator.producer_ids import BLOCK_PATH, AnswerLostError, ProducerIds, acquire_block
from oncelog.coordinator.transactions.coordinator import (
    TransactionConfig,
    TransactionCoordinator,
    end_error,
    expected_producer,
    init_error,
)
from oncelog.coordinator.transactions.decisions import MarkerResult, marker_result
from oncelog.coordinator.transactions.metadata import TransactionMetadata
from oncelog.coordinator.transactions.queries import (
    description,
    list_response,
    matching,
    no_description,
    selected,
)
from oncelog.coordinator.transactions.records import decode_record
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.messages.describe_transactions import TransactionState
from oncelog.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from oncelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from oncelog.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from oncelog.protocol.topics import TRANSACTION_STATE

if TYPE_CHECKING:
    from oncelog.broker.broker import Broker

_BACKOFF_MS = 20
_MAX_BACKOFF_MS = 1000
_ADD_RETRY_MS = 20
_ADD_RETRY_MAX_MS = 100
"""How often and how long a CONCURRENT_TRANSACTIONS of an implicit add is retried here (Kafka's
`add.partitions.to.txn.retry.backoff.ms` and its maximum)."""

MARKERS_A_TURN = 20
"""Markers that are written before other requests have their turn."""

_FENCED_AS = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}

Partition = tuple[str, int]


class TreeBlockStore:
    """The node of the producer id blocks in the versioned tree; blocks, as the tree does."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self) -> tuple[bytes, int]:
        """The newest block and its version; makes the node when there is none."""
        try:
            node = self._tree.get(BLOCK_PATH)
        except NoNodeError:
            with suppress(NodeExistsError):  # another broker was quicker
                self._tree.create(BLOCK_PATH)
            node = self._tree.get(BLOCK_PATH)
        return node.data, node.version

    def write(self, data: bytes, version: int) -> bool:
        """Compare and set; False for another version, AnswerLostError when the tree cannot tell."""
        try:
            self._tree.set(BLOCK_PATH, data, version)
        except BadVersionError:
            return False
        except OutcomeUnknownError as error:
            raise AnswerLostError from error
        return True


class TransactionService:
    """What handlers ask for; ProtocolErrors are turned into each API's own answer here."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.partition_count = broker.config.transaction_state_log_num_partitions
        self._config = TransactionConfig(
            transaction_version=self.transaction_version,
            max_timeout_ms=broker.config.transaction_max_timeout_ms,
            id_expiration_ms=broker.config.transactional_id_expiration_ms,
            two_phase_commit=broker.config.transaction_two_phase_commit_enable,
        )
        self.producer_ids = ProducerIds(self._fill)
        self._filling: asyncio.Task[None] | None = None
        self._closed = False
        self.shell: CoordinatorShell[TransactionCoordinator] = CoordinatorShell(
            broker, TRANSACTION_STATE, self._make_shard, decode_record, self._on_markers
        )

    async def load(self) -> None:
        """Takes the first block of producer ids and loads the coordinators of this broker's partitions."""
        if not self.producer_ids.remaining:
            self._fill()
        await self.shell.load()

    def close(self) -> None:
        """Nothing is written any more."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
        self.shell.close()

    def _make_shard(self, partition: int) -> TransactionCoordinator:
        replica = self._broker.partitions.get(TRANSACTION_STATE, partition)
        assert replica is not None
        return TransactionCoordinator(replica.leader_epoch, self.producer_ids, self._config)

    @property
    def transaction_version(self) -> int:
        """The finalised level of `transaction.version`."""
        return self._broker.features.level(TRANSACTION_VERSION_FEATURE)

    def features_changed(self) -> None:
        """Transactions go on under another transaction.version; each open one keeps that of its client."""
        self._config = replace(self._config, transaction_version=self.transaction_version)
        for _, shard in self.shell.shards():
            shard.config = self._config

    # -- requests ---------------------------------------------------------------------------------------------------

    async def init_producer_id(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        """InitProducerId, with a transactional id or without."""
        try:
            await self._have_producer_ids()
            if request.transactional_id is None:
                if expected_producer(request) is ErrorCode.INVALID_REQUEST:
                    return init_error(ErrorCode.INVALID_REQUEST, version)
                return InitProducerIdResponse(producer_id=self.producer_ids.take(), producer_epoch=0)
            response: InitProducerIdResponse = await self.shell.request(
                self.shell.partition_for(request.transactional_id),
                lambda shard, token: shard.init_producer_id(request, version, token, self._broker.now_ms()),
            )
        except ProtocolError as error:
            return init_error(_coordinator_error(error), version)
        return response

    async def end_txn(self, request: EndTxnRequest, version: int) -> EndTxnResponse:
        """EndTxn; the answer comes when the decision is committed, the markers follow."""
        try:
            await self._have_producer_ids()
            response: EndTxnResponse = await self.shell.request(
                self.shell.partition_for(request.transactional_id),
                lambda shard, token: shard.end_txn(request, version, token, self._broker.now_ms()),
            )
        except ProtocolError as error:
            return end_error(_coordinator_error(error), version)
        return response

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[Partition],
        *,
        verify_only: bool,
        client_version: int = 2,
    ) -> dict[Partition, ErrorCode]:
        """Adds partitions to the producer's transaction, or only asks whether they are in it; an error for each."""
        wanted = tuple(partitions)
        try:
            home = self.shell.partition_for(transactional_id)
            if verify_only:
                return await self.shell.read(
                    home,
                    lambda shard: shard.verify_partitions(transactional_id, producer_id, producer_epoch, wanted),
                )
            code: ErrorCode = await self.shell.request(
                home,
                lambda shard, token: shard.add_partitions(
                    transactional_id,
                    producer_id,
                    producer_epoch,
                    wanted,
                    client_version,
                    token,
                    self._broker.now_ms(),
                ),
            )
        except ProtocolError as error:
            code = _coordinator_error(error)
        return dict.fromkeys(wanted, code)

    async def confirm(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[Partition],
        *,
        implicit: bool,
    ) -> dict[Partition, ErrorCode]:
        """Return an error for each partition that is not in the transaction; `implicit` (KIP-890) adds them first.

        If the markers of the producer's previous transaction are still being written, wait a short time. As in Kafka's
        `AddPartitionsToTxnManager`, PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH, which producers expect in answers
        to Produce and TxnOffsetCommit.
        """
        wanted = tuple(partitions)
        waited_ms = 0
        while True:
            results = await self.add_partitions(
                transactional_id, producer_id, producer_epoch, wanted, verify_only=not implicit
            )
            concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in results.values()
            if not (implicit and concurrent and waited_ms < _ADD_RETRY_MAX_MS):
                return {partition: _FENCED_AS.get(code, code) for partition, code in results.items()}
            await asyncio.sleep(_ADD_RETRY_MS / 1000)
            waited_ms += _ADD_RETRY_MS

    async def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """List the transactions of this broker's coordinators that pass the filters."""
        try:
            self.shell.check_loaded()
            states = await counted(request.state_filters)
            producer_ids = await counted(request.producer_id_filters)
            found: list[TransactionMetadata] = []
            for _, shard in tuple(self.shell.shards()):
                transactions = (transaction for _, transaction in sorted(shard.transactions.items()))
                found += selected(transactions, states, producer_ids, request.duration_filter, self._broker.now_ms())
                await asyncio.sleep(0)
            if request.transactional_id_pattern:
                found = await self._matching(found, request.transactional_id_pattern)
            response = list_response(found, request)
            await self.shell.settled()
        except ProtocolError as error:
            self._broker.log.info("%s", error)
            return ListTransactionsResponse(error_code=error.code)
        return response

    @staticmethod
    async def _matching(transactions: list[TransactionMetadata], pattern: str) -> list[TransactionMetadata]:
        found = []
        for transaction in matching(transactions, pattern):
            if transaction is None:
                await asyncio.sleep(0)
            else:
                found.append(transaction)
        return found

    async def describe(self, transactional_id: str) -> TransactionState:
        """All there is to say of one transactional id, or the error."""
        if not transactional_id:
            return no_description(transactional_id, ErrorCode.INVALID_REQUEST)

        def look(shard: TransactionCoordinator) -> TransactionState:
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                return no_description(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            return description(transaction)

        try:
            return await self.shell.read(self.shell.partition_for(transactional_id), look)
        except ProtocolError as error:
            return no_description(transactional_id, error.code)

    # -- markers ----------------------------------------------------------------------------------------------------

    def _on_markers(self, all_markers: list[Markers]) -> None:
        for markers in all_markers:
            # Not now: the answer to the client goes out first.
            self._broker.loop.call_soon(self._write_markers, markers, _BACKOFF_MS)

    def _write_markers(self, markers: Markers, backoff_ms: int) -> None:
        """Write the markers and report them to the coordinator. Retry those that fail."""
        if len(markers.partitions) <= MARKERS_A_TURN:
            self._write_some(markers, backoff_ms)
        else:
            self._broker.spawn(self._write_many(markers, backoff_ms), "write markers")

    async def _write_many(self, markers: Markers, backoff_ms: int) -> None:
        for first in range(0, len(markers.partitions), MARKERS_A_TURN):
            some = markers.partitions[first : first + MARKERS_A_TURN]
            await self._broker.new_logs.create(filter(None, map(self._replica, some)))
            self._write_some(replace(markers, partitions=some), backoff_ms)
            await asyncio.sleep(0)

    def _write_some(self, markers: Markers, backoff_ms: int) -> None:
        if self._closed:
            return
        try:
            home = self.shell.partition_for(markers.transactional_id)
            shard = self.shell.shard(home)
        except ProtocolError as error:
            self._broker.log.info("markers of %s are left to its new coordinator: %s", markers.transactional_id, error)
            return
        if not shard.wants(markers):
            return
        deleted = {partition for partition in markers.partitions if self._is_deleted(partition)}
        results = {
            partition: self._write_marker(markers, partition)
            for partition in markers.partitions
            if partition not in deleted
        }
        written = [partition for partition, code in results.items() if code is ErrorCode.NONE]
        self._broker.partitions.when_committed(
            written, lambda lost: self._markers_written(home, markers, results | lost, deleted, backoff_ms)
        )

    def _replica(self, partition: Partition) -> Replica | None:
        try:
            return self._broker.partitions.get(*partition)
        except ProtocolError:  # writing the marker reports the error
            return None

    def _markers_written(
        self,
        home: int,
        markers: Markers,
        results: dict[Partition, ErrorCode],
        deleted: set[Partition],
        backoff_ms: int,
    ) -> None:
        """Tells the coordinator which markers are there, and comes again for the rest."""
        try:
            shard = self.shell.shard(home)
        except ProtocolError as error:
            self._broker.log.info("markers of %s are left to its new coordinator: %s", markers.transactional_id, error)
            return
        self.shell.apply(home, shard.markers_written(markers, results, self._broker.now_ms(), deleted=deleted))
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in results.values():
            return
        # A partition that knows a later epoch takes no marker of this one; the others wait for theirs all the same.
        rest = tuple(partition for partition, error in results.items() if marker_result(error) is MarkerResult.RETRY)
        if rest:
            self._broker.loop.call_later(
                backoff_ms / 1000,
                self._write_markers,
                replace(markers, partitions=rest),
                min(2 * backoff_ms, _MAX_BACKOFF_MS),
            )

    def _is_deleted(self, partition: Partition) -> bool:
        info = self._broker.metadata.topic(partition[0])
        return info is None or partition[1] >= info.partition_count

    def _write_marker(self, markers: Markers, partition: Partition) -> ErrorCode:
        try:
            self._broker.partitions.append_marker(
                *partition,
                commit=markers.commit,
                producer_id=markers.producer_id,
                producer_epoch=markers.producer_epoch,
                coordinator_epoch=markers.coordinator_epoch,
                transaction_version=markers.transaction_version,
            )
        except ProtocolError as error:
            self._broker.log.warning(
                "marker of %s (producer %d, epoch %d) for %s-%d refused: %s",
                markers.transactional_id,
                markers.producer_id,
                markers.producer_epoch,
                *partition,
                error,
            )
            return error.code
        return ErrorCode.NONE

    # -- producer ids -----------------------------------------------------------------------------------------------

    async def _have_producer_ids(self) -> None:
        """Waits for the next block when the last one is used up."""
        if self.producer_ids.remaining:
            return
        self._fill()
        assert self._filling is not None
        try:
            await asyncio.shield(self._filling)
        except TreeError as error:
            message = f"no block of producer ids to be had: {error!r}"
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message) from error

    def _fill(self) -> None:
        if self._filling is None and not self._closed:
            self._filling = self._broker.loop.create_task(self._take_block(), name="producer id block")
            self._filling.add_done_callback(self._filled)

    async def _take_block(self) -> None:
        store = TreeBlockStore(self._broker.tree)
        self.producer_ids.add(await self._broker.offload(acquire_block, store, self._broker.node_id))

    def _filled(self, task: asyncio.Task[Any]) -> None:
        self._filling = None
        if not task.cancelled() and task.exception() is not None:
            self._broker.log.error("cannot take a block of producer ids: %r", task.exception())


def _coordinator_error(error: ProtocolError) -> ErrorCode:
    return APPEND_ERRORS.get(error.code, error.code)
