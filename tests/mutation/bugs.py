"""Known bugs: the change that reintroduces each, and the tests that must fail.

One line of code is replaced in a copy of the sources. If the line does not occur exactly once, the test raises an
error.
"""

from __future__ import annotations

from typing import NamedTuple

from mutation.group_bugs import GROUP_BUGS, GROUPS


class Bug(NamedTuple):
    """One bug: its ticket, the module, the correct line, the line with the bug, and the tests that catch it."""

    seen: str
    module: str
    right: str
    wrong: str
    caught_by: str


LOG = "tests/unit/log/test_log_producers.py"
STATE = "tests/unit/log/test_producer_state.py"
FOLLOWER = "tests/unit/log/test_follower_append.py"
COORDINATOR = "tests/unit/coordinator/test_transactions.py"
KEPT = "tests/properties/test_transaction_coordinator.py"

BUGS = {
    "a late ending ends the next transaction": Bug(
        "KAFKA-17754",
        "coordinator/transactions/decisions.py",
        "request = _Request.RETRY if retry else _Request.CURRENT",
        "request = _Request.CURRENT",
        f"{COORDINATOR}::test_late_end_never_affects_the_next_transaction",
    ),
    "an ending of a higher epoch is taken": Bug(
        "KAFKA-9600",
        "coordinator/transactions/decisions.py",
        "if (producer_id, epoch) == transaction.holder:",
        "if producer_id == transaction.holder[0] and epoch >= transaction.holder[1]:",
        f"{COORDINATOR}::test_higher_epoch_is_rejected",
    ),
    "a commit that lost against the coordinator's abort may be repeated": Bug(
        "KAFKA-20785",
        "coordinator/transactions/decisions.py",
        "(_S.COMPLETE_ABORT, _Request.RETRY, True): _FENCED,",
        "(_S.COMPLETE_ABORT, _Request.RETRY, True): _INVALID,",
        f"{COORDINATOR}::test_commit_after_the_coordinators_abort_is_fenced",
    ),
    "the coordinator's abort leaves the epoch alone": Bug(
        "KAFKA-6119",
        "coordinator/transactions/decisions.py",
        "return transaction.prepare_fencing_abort(version, _successor(transaction, version, take), now_ms)",
        "return transaction.prepare(False, 0, None, now_ms)",
        COORDINATOR,
    ),
    "a partition without a leader counts as marked": Bug(
        "Kafka 4.3.1",
        "coordinator/transactions/decisions.py",
        "return _MARKER_RESULTS.get(error, MarkerResult.RETRY)",
        "return _MARKER_RESULTS.get(error, MarkerResult.WRITTEN)",
        f"{COORDINATOR}::test_existing_partition_is_never_skipped",
    ),
    "a late produce is taken without its transaction": Bug(
        "KAFKA-14402",
        "log/admission.py",
        "if not verified or (guard is not None and not self._state.is_verified(header.producer_id, guard)):",
        "if False:",
        LOG,
    ),
    "an epoch begins at the log start": Bug(
        "Kafka 4.3.1",
        "log/epochs.py",
        "del self._epochs[:slot], self._starts[:slot]",
        "del self._epochs[:slot], self._starts[:slot]; self._starts[0] = start_offset",
        "tests/simulation/test_named_scenarios.py::test_deleted_divergence",
    ),
    "a leader forgets the epoch of the last record that it has deleted": Bug(
        "KIP-101",
        "log/epochs.py",
        "slot = bisect_left(self._starts, start_offset) - 1",
        "slot = bisect_right(self._starts, start_offset) - 1",
        "tests/simulation/test_named_scenarios.py::test_deleted_divergence",
    ),
    "a late marker ends the next transaction": Bug(
        "KIP-1228",
        "log/producer_state.py",
        "if epoch == self.epoch and (self.txn_start < 0 or epoch == MAX_PRODUCER_EPOCH):",
        "if epoch == self.epoch:",
        STATE,
    ),
    "an older coordinator's marker is taken": Bug(
        "KAFKA-9144",
        "log/producer_state.py",
        "if coordinator_epoch < self.coordinator_epoch:",
        "if False:",
        STATE,
    ),
    "an idle producer is judged by the times of its data": Bug(
        "KAFKA-9144",
        "log/producer_state.py",
        "return entry.txn_start < 0 and now_ms - entry.touched_ms >= self.expiration_ms",
        "return entry.txn_start < 0 and now_ms - entry.last_timestamp >= self.expiration_ms",
        STATE,
    ),
    "producers go with the records that retention takes": Bug(
        "KAFKA-7190",
        "log/producer_state.py",
        "self.end_offset = max(self.end_offset, offset)\n\n    def load",
        "self.end_offset = max(self.end_offset, offset)\n        self.entries.clear()\n\n    def load",
        "tests/unit/log",
    ),
    "sequences wrap to a negative number": Bug(
        "aiokafka",
        "protocol/records.py",
        "return (sequence + delta) & MAX_SEQUENCE",
        "return (sequence + delta + 2**31) % 2**32 - 2**31",
        "tests/unit/protocol/test_records.py",
    ),
    "a batch that overlaps a remembered one counts as its repetition": Bug(
        "tansu",
        "log/producer_state.py",
        "if batch.last_sequence == last and batch.first_sequence == header.base_sequence:",
        "if batch.last_sequence == last:",
        STATE,
    ),
    "the list of aborted transactions is empty": Bug(
        "tansu before July 2026",
        "broker/requests/fetch_consumers.py",
        "return replica.log.aborted_transactions(start, end)",
        "return []",
        "tests/clients/test_transactions.py::test_commit_and_abort",
    ),
    "the last stable offset is off by one": Bug(
        "Redpanda",
        "log/truncation.py",
        "return max(unstable, self.log_start_offset)",
        "return max(unstable, self.log_start_offset) + 1",
        LOG,
    ),
    "offsets expire while transactional ones are pending": Bug(
        "KAFKA-14505",
        "coordinator/groups/deletion.py",
        "                or store.is_unstable(group_id, partition)\n",
        "",
        "tests/features/test_groups_offsets.py::test_offsets_do_not_expire_while_a_transaction_has_one_pending",
    ),
    "a crash leaves the epochs of a truncation, but not the truncation": Bug(
        "model of replicas",
        "log/recovery.py",
        "        self._epochs.truncate_from_end(base)\n",
        "",
        f"{FOLLOWER}::test_epochs_are_those_of_the_batches_that_a_crash_has_left",
    ),
    "a transaction is stable before its marker is committed": Bug(
        "model of replicas",
        "log/recovery.py",
        "max(high_watermark, first)",
        "NO_LIMIT",
        f"{FOLLOWER}::test_transaction_is_unstable_after_a_restart_until_its_marker_is_committed",
    ),
    "the producer state survives a truncation": Bug(
        "KAFKA-9144",
        "log/log_files.py",
        "self.state.replace(state)",
        "self.state.end_offset = end",
        f"{FOLLOWER}::test_truncation_restores_the_state_before_the_offset",
    ),
    "a verification survives a truncation": Bug(
        "KIP-890",
        "log/producer_state.py",
        "        self._verifications.clear()\n        self.end_offset = rebuilt.end_offset",
        "        self.end_offset = rebuilt.end_offset",
        f"{FOLLOWER}::test_truncation_and_the_end_of_a_term_end_verifications",
    ),
    "the former producer ends the transaction that a session has kept": Bug(
        "KIP-939",
        "coordinator/transactions/metadata.py",
        "        if self.kept:\n            return self.next_producer_id, self.next_producer_epoch\n",
        "",
        KEPT,
    ),
    "a partition is added to a kept transaction": Bug(
        "KIP-939",
        "coordinator/transactions/decisions.py",
        "    if transaction.kept:\n        return ErrorCode.INVALID_TXN_STATE\n    if transaction.state",
        "    if transaction.state",
        KEPT,
    ),
    "the end of a kept transaction leaves the epoch of its session": Bug(
        "KIP-939",
        "coordinator/transactions/decisions.py",
        "        return _next_producer(transaction.holder, take)\n    rotates =",
        "        return transaction.holder\n    rotates =",
        KEPT,
    ),
    "the successor of a coordinator forgets which session has kept a transaction": Bug(
        "KIP-939",
        "coordinator/transactions/records.py",
        "        value.next_producer_epoch = transaction.next_producer_epoch\n",
        "",
        KEPT,
    ),
    "a shorter timeout of a session aborts the transaction that it has kept": Bug(
        "KIP-939",
        "coordinator/transactions/metadata.py",
        "timeout_ms=max(self.timeout_ms, timeout_ms),",
        "timeout_ms=timeout_ms,",
        "tests/unit/coordinator/test_kept_transactions.py",
    ),
    **{
        name: Bug("KIP-848", f"{GROUPS}{bug.module}", bug.right, bug.wrong, bug.caught_by)
        for name, bug in GROUP_BUGS.items()
    },
}
