"""The owner of a prefix: who may write under it, and which batches are committed already."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import decision_topic
from oncelog.spark.commit.record import APP, EACH, NO_SOURCE, STREAM, WRITE, Record, Source


class Permission(NamedTuple):
    """Options `adoptCheckpoint`, `takeOver` and `acceptReplay` (a batch id or txnVersion)."""

    adopt_checkpoint: bool = False
    take_over: bool = False
    accept_replay: int | None = None


NO_PERMISSION = Permission()

TAKING_OVER = {
    STREAM: "If this query is new because its checkpoint was deleted, it begins at startingOffsets. With earliest, it "
    "then writes all rows of the other one a second time",
    APP: "That deletes the record of the other txnVersion. If this is the same application, its last version is then "
    "written a second time",
    WRITE: "A write without txnAppId and txnVersion cannot be recognized: if you repeat it, it writes its rows twice",
    EACH: "That deletes the record of the other one. If it was this query, a batch that Spark replays is then written "
    "a second time",
}
"""The consequence of taking a prefix over, by the kind of the new owner."""


def describe(source: Source) -> str:
    """Return a text for this source in a message."""
    if source.kind == WRITE:
        return "a batch write without txnAppId"
    kind = "txnAppId" if source.kind == APP else source.kind
    words = [f"{kind} {source.query!r}" if source.query else kind]
    if source.checkpoint:
        words.append(f"checkpointLocation {source.checkpoint!r}")
    return ", ".join(words)


def is_another(one: Source, other: Source) -> bool:
    """Return whether these are certainly two sources. If a plan does not know its query's id, compare checkpoints."""
    if one.kind != other.kind:
        return True
    if one.query and other.query:
        return one.query != other.query
    return bool(one.checkpoint and other.checkpoint) and one.checkpoint.rstrip("/") != other.checkpoint.rstrip("/")


def same_query(one: Source, other: Source) -> str:
    """Return the end of a message for two sources that may be the same: what to do then."""
    if one.kind != other.kind or (one.query and other.query):
        return ""
    return ". If both are the same query with its checkpointLocation spelled differently, set takeOver=true"


def check_decisions(topic: str, prefix: str, record: Record) -> None:
    """Raise MisuseError if the topic holds another prefix's decisions.

    One record would replace the other before it is settled. A record without a prefix was written by an older oncelog.
    It counts as this prefix's.
    """
    if record.prefix not in ("", prefix):
        raise MisuseError(
            f"option decisionTopic={topic}: the topic has the decisions of transactionalIdPrefix={record.prefix}, but "
            f"this sink has {prefix}; each prefix needs its own decision topic (default: {decision_topic(prefix)})"
        )


def check_owner(prefix: str, record: Record, source: Source, permission: Permission) -> None:
    """Raise MisuseError if the prefix belongs to another source: to the one whose rows were committed last.

    Writes without a name may follow each other. Anything else needs `takeOver`: the record that it replaced may be
    this very query's, and its last batch would be written twice.
    """
    owner = record.source
    if (
        owner == NO_SOURCE
        or owner.kind == source.kind == WRITE
        or permission.take_over
        or not is_another(owner, source)
    ):
        return
    last = f"last txnVersion {owner.batch}" if owner.kind == APP else f"last batch {owner.batch}"
    raise MisuseError(
        f"option transactionalIdPrefix={prefix}: the prefix belongs to {describe(owner)} ({last}), "
        f"but this is {describe(source)}. If both run, give each its own prefix. If the other one never runs again, "
        f"set takeOver=true. {TAKING_OVER[source.kind]}{same_query(owner, source)}"
    )


def admit(prefix: str, record: Record, source: Source, permission: Permission) -> None:
    """Run `check_owner` for a plan. Raises MisuseError.

    A plan does not know whether it runs inside foreachBatch: its writer has no name yet. If the prefix belongs to a
    query with foreachBatch, the plan admits such a writer. Its tasks know the query, and K1 rejects any other query.
    """
    if not (source.kind == WRITE and record.source.kind == EACH):
        check_owner(prefix, record, source, permission)


def check_idle(prefix: str, record: Record, source: Source, permission: Permission, *, left: bool) -> None:
    """Raise MisuseError if another source is at work.

    That is: its task transactions are open (`left`), or it made the last plan and nothing is committed yet. Before a
    query's first task has written, nothing of its first batch is open, and the record has no source of rows. Only the
    record's planner shows that it runs.

    A write without a name is not checked. After a crash, it comes back under another name, and must be able to
    replace itself.
    """
    writer = record.planner
    if not (left or record.source == NO_SOURCE):
        return
    if writer.kind == WRITE or permission.take_over or not is_another(writer, source):
        return
    does = "is using the prefix" if left else "has planned its first batch with the prefix"
    raise MisuseError(
        f"option transactionalIdPrefix={prefix}: {describe(writer)} {does}, but this is {describe(source)}. If both "
        f"run, give each its own prefix. If the other one has ended, run `oncelog sink settle {prefix}` to end its "
        f"open transactions, or set takeOver=true{same_query(writer, source)}"
    )


def already_committed(prefix: str, record: Record, source: Source, permission: Permission) -> bool:
    """Return whether this batch is in the record. Raises MisuseError if the two cannot belong together."""
    check_owner(prefix, record, source, permission)
    last = record.source
    same = last != NO_SOURCE and not is_another(last, source)
    if source.kind == APP:
        return same and _compare_versions(last, source, permission)
    if source.kind == WRITE:
        return False
    if source.kind == EACH:
        return same and _compare_calls(prefix, last, source, permission)
    return _compare_batches(last if same else NO_SOURCE, source, permission)


def source_after_skip(committed: Source, source: Source) -> Source:
    """Return the source of the record after this source has skipped a batch that is committed.

    Inside foreachBatch, it has the call that skipped the batch, so that K1 can reject the call's second write. If
    acceptReplay has accepted other offsets, it is the one that skipped: its next batch begins where this batch ends in
    its own checkpoint.
    """
    if source.kind == EACH:
        return committed._replace(call=source.call)
    if source.kind == STREAM and (differ(committed.start, source.start) or differ(committed.end, source.end)):
        return source
    return committed


def _compare_versions(last: Source, source: Source, permission: Permission) -> bool:
    """Return whether this version is committed. Raises MisuseError for a lower one, unless acceptReplay names it.

    The record does not say whether a lower version was ever written. A new checkpoint's batch numbers begin at 0 again,
    and an application may write a version late.
    """
    if source.batch < last.batch and permission.accept_replay != source.batch:
        raise MisuseError(
            f"option txnVersion={source.batch}: it is below {last.batch}, the last version that txnAppId="
            f"{source.query} has committed, but versions must increase. If the rows are new (a new checkpoint begins "
            "at 0 again), use a higher txnVersion, or another txnAppId and transactionalIdPrefix. If the rows are "
            f"committed already, set acceptReplay={source.batch} to skip them"
        )
    return source.batch <= last.batch


def _compare_calls(prefix: str, last: Source, source: Source, permission: Permission) -> bool:
    """Return whether this write is a replay inside foreachBatch. Raises MisuseError for a second write of one call.

    Two writes of one call have the same query and batch number. In a replay, the second write would look like the
    first, and its rows would be lost. So the sink rejects it from the first call on. A batch may write nothing, so
    numbers may be missing.

    If the function ignores the error of its first write, the second write commits the batch. In a replay, the first
    write would look like the second. If the two have different topics, the sink rejects it.
    """
    _check_not_older(last.batch, source)
    if source.batch == last.batch and source.call == last.call:
        raise MisuseError(
            f"option transactionalIdPrefix={prefix}: this call of foreachBatch has already written batch "
            f"{source.batch} with the prefix, and a replay could not distinguish the two writes. Give each write its "
            "own prefix, or set txnAppId and txnVersion, with another txnVersion for each write"
        )
    moved = last.topic and source.topic and source.topic != last.topic
    if source.batch == last.batch and moved and permission.accept_replay != source.batch:
        raise MisuseError(
            f"option transactionalIdPrefix={prefix}: a write to topic {last.topic} has committed batch {source.batch}, "
            f"but this write is to topic {source.topic}. If they are two writes of one foreachBatch function, give "
            "each its own prefix, and let the function fail if one of its writes fails. If the option topic has "
            f"changed meanwhile, set acceptReplay={source.batch} to skip the batch"
        )
    return source.batch == last.batch


def _check_not_older(last: int, source: Source) -> None:
    if source.batch < last:
        raise MisuseError(
            f"option checkpointLocation: the checkpoint is at batch {source.batch}, but the sink has already "
            f"committed batch {last}. If another driver of this query was running until now, start the query again; "
            "otherwise, restore the newer checkpoint"
        )


def _compare_batches(committed: Source, source: Source, permission: Permission) -> bool:
    last = committed.batch
    if source.batch == last:
        if permission.accept_replay != last:
            _check_same_offsets(committed, source)
        return True
    _check_not_older(last, source)
    if permission.adopt_checkpoint:
        return False
    if source.batch > last + 1:
        here = f"the last one in the sink is {last}" if last >= 0 else "the sink has none of its batches"
        raise MisuseError(
            f"option checkpointLocation: the checkpoint is at batch {source.batch}, but {here}. "
            "If the query has moved here from another sink, or its decision topic was deleted, set "
            f"adoptCheckpoint=true. If the output has batch {source.batch} already, that writes it a second time. So "
            f"compare the last rows of the output with offsets/{source.batch} in the checkpoint first: see "
            "docs/operations/sink-starts.md"
        )
    _check_follows(committed, source)
    return False


def differ(one: str, other: str) -> bool:
    """Return whether two digests of offsets are known and different."""
    return bool(one and other) and one != other


def _check_same_offsets(committed: Source, source: Source) -> None:
    """Raise MisuseError if the checkpoint has planned the committed batch again, with other offsets.

    Spark stores the offsets of a batch before its tasks run. In a replay, it reads them again. So other offsets are
    those of another batch with the same number, whose rows the sink must not skip. The number of rows is often equal,
    because of maxOffsetsPerTrigger.
    """
    if not differ(committed.start, source.start) and not differ(committed.end, source.end):
        return
    raise MisuseError(
        f"option checkpointLocation: the sink has committed batch {source.batch} with other offsets than those that "
        f"the checkpoint {source.checkpoint!r} now has for it, so this is not a replay. The checkpoint is an older "
        "copy, or another copy of it is in use, or it has lost a file in offsets/. Nothing was written. Restore the "
        "newer checkpoint. Without one, start a new checkpoint where the committed rows end (startingOffsets, "
        f"takeOver=true). With acceptReplay={source.batch}, the sink would skip this batch: rows that only this one "
        "has would be lost, and later batches may write committed rows again"
    )


def _check_follows(committed: Source, source: Source) -> None:
    """Raise MisuseError if a batch does not begin where the committed one before it ended.

    Spark never changes a batch's end, at which the next batch begins. So another checkpoint has written the committed
    batch, or the file with its end was edited.
    """
    if not differ(committed.end, source.start):
        return
    raise MisuseError(
        f"option checkpointLocation: batch {source.batch} of the checkpoint {source.checkpoint!r} does not begin where "
        f"batch {committed.batch} ended, which the sink has committed from {committed.checkpoint!r}. Another copy of "
        f"the checkpoint has written batch {committed.batch}, or a file in offsets/ was edited. Nothing was written. "
        "Continue with the checkpoint that has written the last batch. Without it, start a new checkpoint where the "
        "committed rows end (startingOffsets, takeOver=true). With adoptCheckpoint=true, the sink would continue from "
        "here: rows between the two offsets would be lost, or written twice"
    )
