"""Answer the requests for transactions with the coordinators of this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from oncelog.broker.config.settings import BrokerConfig
from oncelog.broker.coordinators.producer_ids import ProducerIdBlocks
from oncelog.broker.coordinators.shell import APPEND_ERRORS, CoordinatorShell
from oncelog.broker.coordinators.terms import CoordinatorTerms
from oncelog.broker.coordinators.verification import RemoteCoordinators
from oncelog.broker.peers import Peers
from oncelog.broker.storage.partitions import Partitions
from oncelog.broker.turns import counted
from oncelog.broker.workers import Runtime
from oncelog.cluster.features import TRANSACTION_VERSION
from oncelog.cluster.image import MetadataCache, MetadataDelta
from oncelog.coordinator.transactions.coordinator import (
    TransactionConfig,
    TransactionCoordinator,
    end_error,
    expected_producer,
    init_error,
)
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
from oncelog.protocol.topics import TRANSACTION_STATE, TopicPartition

_ADD_RETRY_MS = 20
_ADD_RETRY_MAX_MS = 100
"""An implicit add that fails with CONCURRENT_TRANSACTIONS is retried every _ADD_RETRY_MS, for _ADD_RETRY_MAX_MS at most
(Kafka's `add.partitions.to.txn.retry.backoff.ms` and its maximum)."""

_FENCED_AS = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}


class TransactionService:
    """Answer the requests of transactional producers. Errors are returned in the form of each API.

    `MarkerWriter` writes the markers that `shell` reports.
    """

    def __init__(
        self,
        cache: MetadataCache,
        partitions: Partitions,
        peers: Peers,
        producer_ids: ProducerIdBlocks,
        config: BrokerConfig,
        runtime: Runtime,
    ) -> None:
        self._cache = cache
        self._producer_ids = producer_ids
        self._now_ms = runtime.now_ms
        self._logger = runtime.logger
        self._settings = TransactionConfig(
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            two_phase_commit=config.transaction_two_phase_commit_enable,
        )
        terms = CoordinatorTerms(TRANSACTION_STATE, self._make_shard, decode_record, cache, partitions, runtime)
        self.shell = CoordinatorShell(terms, cache, runtime)
        self._peers = peers
        self._remote = RemoteCoordinators(peers, runtime.workers)

    def _make_shard(self, epoch: int) -> TransactionCoordinator:
        self._settings.transaction_version = self._cache.image.feature_level(TRANSACTION_VERSION)
        return TransactionCoordinator(epoch, self._producer_ids.ids, self._settings)

    def metadata_changed(self, delta: MetadataDelta) -> Callable[[], Awaitable[None]] | None:
        """Follow the leaders of the coordinators' topic. Apply another `transaction.version` to new transactions.

        All coordinators share the settings, those that are loading too. An open transaction keeps its client's version.
        """
        self._settings.transaction_version = delta.after.feature_level(TRANSACTION_VERSION)
        return self.shell.terms.metadata_changed(delta)

    async def load(self) -> None:
        """Reserve the first block of producer ids, then load the coordinators of this broker's partitions."""
        if not self._producer_ids.ids.remaining:
            self._producer_ids.reserve()
        await self.shell.terms.load()

    def close(self) -> None:
        """Append nothing from now on."""
        self._producer_ids.close()
        self.shell.terms.close()

    # -- requests ---------------------------------------------------------------------------------------------------

    async def init_producer_id(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        """Answer InitProducerId, with or without a transactional id."""
        try:
            await self._producer_ids.available()
            if request.transactional_id is None:
                if expected_producer(request) is ErrorCode.INVALID_REQUEST:
                    return init_error(ErrorCode.INVALID_REQUEST, version)
                response = InitProducerIdResponse(producer_id=self._producer_ids.ids.take(), producer_epoch=0)
                self._logger.debug("assigned producer id %d to a producer without transactions", response.producer_id)
                return response
            answer: InitProducerIdResponse = await self.shell.request(
                self.shell.partition_for(request.transactional_id),
                lambda shard, token: shard.init_producer_id(request, version, token, self._now_ms()),
            )
        except ProtocolError as error:
            return init_error(_coordinator_error(error), version)
        return answer

    async def end_txn(self, request: EndTxnRequest, version: int) -> EndTxnResponse:
        """Answer EndTxn after the decision is committed. The markers are written afterwards."""
        try:
            await self._producer_ids.available()
            response: EndTxnResponse = await self.shell.request(
                self.shell.partition_for(request.transactional_id),
                lambda shard, token: shard.end_txn(request, version, token, self._now_ms()),
            )
        except ProtocolError as error:
            return end_error(_coordinator_error(error), version)
        return response

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        verify_only: bool,
        client_version: int = 2,
    ) -> dict[TopicPartition, ErrorCode]:
        """Add partitions to the producer's transaction, or only verify that they are in it. Return an error for each.

        The error is NONE for each partition that is in the transaction.
        """
        wanted = tuple(partitions)
        try:
            coordinator_partition = self.shell.partition_for(transactional_id)
            if verify_only:
                return await self.shell.read(
                    coordinator_partition,
                    lambda shard: shard.verify_partitions(transactional_id, producer_id, producer_epoch, wanted),
                )
            code: ErrorCode = await self.shell.request(
                coordinator_partition,
                lambda shard, token: shard.add_partitions(
                    transactional_id,
                    producer_id,
                    producer_epoch,
                    wanted,
                    client_version,
                    token,
                    self._now_ms(),
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
        partitions: Iterable[TopicPartition],
        *,
        implicit: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Return an error for each partition that is not in the transaction; `implicit` (KIP-890) adds them first.

        The coordinator may be on another broker. If it cannot be reached, the errors are retriable.
        If the markers of the producer's previous transaction are still being written, wait a short time. As in Kafka's
        `AddPartitionsToTxnManager`, PRODUCER_FENCED becomes INVALID_PRODUCER_EPOCH, which producers expect in responses
        to Produce and TxnOffsetCommit.
        """
        wanted = tuple(partitions)
        producer = transactional_id, producer_id, producer_epoch
        waited_ms = 0
        while True:
            try:
                coordinator = self._coordinator(transactional_id)
            except ProtocolError as error:
                return dict.fromkeys(wanted, error.code)
            if coordinator == self._peers.node_id:
                results = await self.add_partitions(*producer, wanted, verify_only=not implicit)
            else:
                results = await self._remote.add_partitions(coordinator, *producer, wanted, verify_only=not implicit)
            concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in results.values()
            if not (implicit and concurrent and waited_ms < _ADD_RETRY_MAX_MS):
                return {partition: _FENCED_AS.get(code, code) for partition, code in results.items()}
            await asyncio.sleep(_ADD_RETRY_MS / 1000)
            waited_ms += _ADD_RETRY_MS

    def _coordinator(self, transactional_id: str) -> int:
        """Return the broker of a transaction's coordinator. Raises ProtocolError if no running broker has it."""
        info = self._cache.image.partition(TRANSACTION_STATE, self.shell.partition_for(transactional_id))
        if info is not None and (info.leader == self._peers.node_id or self._peers.knows(info.leader)):
            return info.leader
        message = f"the coordinator of {transactional_id!r} is on no running broker"
        raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    async def list_transactions(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        """List the transactions of this broker's coordinators that pass the filters."""
        try:
            self.shell.terms.check_loaded()
            states = await counted(request.state_filters)
            producer_ids = await counted(request.producer_id_filters)
            found: list[TransactionMetadata] = []
            for _, shard in tuple(self.shell.terms.shards()):
                transactions = (transaction for _, transaction in sorted(shard.transactions.items()))
                found += selected(transactions, states, producer_ids, request.duration_filter, self._now_ms())
                await asyncio.sleep(0)
            if request.transactional_id_pattern:
                found = await self._matching(found, request.transactional_id_pattern)
            response = list_response(found, request)
            await self.shell.settled()
        except ProtocolError as error:
            self._logger.info("%s", error)
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
        """Return the state of one transactional id, or its error."""
        if not transactional_id:
            return no_description(transactional_id, ErrorCode.INVALID_REQUEST)

        def describe_in(shard: TransactionCoordinator) -> TransactionState:
            transaction = shard.transactions.get(transactional_id)
            if transaction is None:
                return no_description(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            return description(transaction)

        try:
            return await self.shell.read(self.shell.partition_for(transactional_id), describe_in)
        except ProtocolError as error:
            return no_description(transactional_id, error.code)


def _coordinator_error(error: ProtocolError) -> ErrorCode:
    return APPEND_ERRORS.get(error.code, error.code)
