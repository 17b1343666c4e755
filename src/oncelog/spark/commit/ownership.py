"""The owner of a prefix: who may write under it, and which batches are committed already."""

from __future__ import annotations

from typing import NamedTuple

from oncelog.spark.commit.errors import MisuseError
from oncelog.spark.commit.names import decision_topic
from oncelog.spark.commit.record import APP, EACH, NOBODY, STREAM, WRITE, Record, Source


class Permission(NamedTuple):
    """Options `adoptCheckpoint`, `takeOver` and `acceptReplay` (a batch id or txnVersion)."""

    adopt_checkpoint: bool = False
    take_over: bool = False
    accept_replay: int | None = None


NO_PERMISSION = Permission()

TAKING_OVER = {
    STREAM: "if this is a new query because its checkpoint was deleted, it begins where startingOffsets says, and with "
    "earliest writes again all that the former has written",
    APP: "the former's txnVersion is forgotten then: with takeOver it writes its last version a second time",
    WRITE: "a write without txnAppId and txnVersion is not known again: repeated, it writes twice",
    EACH: "the record of the former is forgotten then: if it was this very query, a batch that Spark replays now is "
    "written a second time",
}
"""The consequence of taking a prefix over, by the kind of the new owner."""


def describe(source: Source) -> str:
    """Return a text for this source in a message."""
    told = [f"{source.kind} {source.query!r}" if source.query else source.kind]
    if source.checkpoint:
        told.append(f"checkpointLocation {source.checkpoint!r}")
    return ", ".join(told)


def is_another(one: Source, other: Source) -> bool:
    """Return whether these are known to be two. A plan may not know its query's id; then checkpoints are compared."""
    if one.kind != other.kind:
        return True
    if one.query and other.query:
        return one.query != other.query
    return bool(one.checkpoint and other.checkpoint) and one.checkpoint.rstrip("/") != other.checkpoint.rstrip("/")


def same_query(one: Source, other: Source) -> str:
    """Return the end of a message for sources that may be one: what to do then."""
    if one.kind != other.kind or (one.query and other.query):
        return ""
    return ". If it is the same query, and only its checkpoint is written differently: takeOver=true, too"


def check_decisions(topic: str, prefix: str, record: Record) -> None:
    """Raise MisuseError if the topic holds another prefix's decisions.

    One record would replace the other before it is settled. A record without a prefix was written by an older oncelog.
    It counts as this prefix's.
    """
    if record.prefix not in ("", prefix):
        raise MisuseError(
            f"option decisionTopic={topic}: it holds the decisions of transactionalIdPrefix={record.prefix}, this is "
            f"{prefix}; each prefix needs a topic of its own, {decision_topic(prefix)} unless it is told another"
        )


def check_owner(prefix: str, record: Record, source: Source, permission: Permission) -> None:
    """Raise MisuseError if the prefix belongs to another source: to the one whose rows were committed last.

    Writes without a name may follow each other. Anything else needs `takeOver`: the record that it replaced may be
    this very query's, and its last batch would be written twice.
    """
    owner = record.source
    if owner == NOBODY or owner.kind == source.kind == WRITE or permission.take_over or not is_another(owner, source):
        return
    raise MisuseError(
        f"option transactionalIdPrefix={prefix}: it belongs to {describe(owner)} (last batch {owner.batch}), this is "
        f"{describe(source)}. Two that run need a prefix each. If the former never runs again, takeOver=true goes on "
        f"under its name; but {TAKING_OVER[source.kind]}{same_query(owner, source)}"
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
    if not (left or record.source == NOBODY):
        return
    if writer.kind == WRITE or permission.take_over or not is_another(writer, source):
        return
    does = "is at work" if left else "has planned its first batch"
    raise MisuseError(
        f"option transactionalIdPrefix={prefix}: {describe(writer)} {does} under it, this is {describe(source)}. "
        f"Two that run need a prefix each. If the former is dead, `oncelog sink settle {prefix}` ends what it left "
        f"open, and makes way; so does takeOver=true{same_query(writer, source)}"
    )


def already_committed(prefix: str, record: Record, source: Source, permission: Permission) -> bool:
    """Return whether this batch is in the record. Raises MisuseError if the two cannot belong together."""
    check_owner(prefix, record, source, permission)
    last = record.source
    same = last != NOBODY and not is_another(last, source)
    if source.kind == APP:
        return same and _compare_versions(last, source, permission)
    if source.kind == WRITE:
        return False
    if source.kind == EACH:
        return same and _compare_calls(prefix, last, source, permission)
    return _compare_batches(last.batch if same else -1, source, permission)


def _compare_versions(last: Source, source: Source, permission: Permission) -> bool:
    """Return whether this version is committed. Raises MisuseError for a lower one, unless acceptReplay names it.

    The record does not say whether a lower version was ever written. A new checkpoint's batch numbers begin at 0 again,
    and an application may write a version late.
    """
    if source.batch < last.batch and permission.accept_replay != source.batch:
        raise MisuseError(
            f"option txnVersion={source.batch}: it is below {last.batch}, the last that txnAppId={source.query} has "
            "committed; versions rise from write to write. If these rows are new (a deleted checkpoint begins at 0 "
            f"again), they want a higher txnVersion, or a txnAppId and a transactionalIdPrefix of their own. If they "
            f"were written long ago, acceptReplay={source.batch} passes over them"
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
            f"option transactionalIdPrefix={prefix}: this call of foreachBatch has written batch {source.batch} under "
            "it already, and a replay could not tell the two writes apart. Give each write a prefix of its own, or set "
            "txnAppId and txnVersion, with another txnVersion for each write"
        )
    moved = last.topic and source.topic and source.topic != last.topic
    if source.batch == last.batch and moved and permission.accept_replay != source.batch:
        raise MisuseError(
            f"option transactionalIdPrefix={prefix}: a write to topic {last.topic} has committed batch {source.batch}, "
            f"and this write is to topic {source.topic}. If they are two writes of one foreachBatch function, give "
            "each a prefix of its own, and let the function fail if one of its writes fails. If the option topic has "
            f"changed since, acceptReplay={source.batch} takes the batch as written"
        )
    return source.batch == last.batch


def _check_not_older(last: int, source: Source) -> None:
    if source.batch < last:
        raise MisuseError(
            f"option checkpointLocation: it is older than the sink, at batch {source.batch}; committed is {last}. "
            "If another driver of this query was running a moment ago, start the query again; else restore the "
            "checkpoint"
        )


def _compare_batches(last: int, source: Source, permission: Permission) -> bool:
    if source.batch == last:
        return True
    _check_not_older(last, source)
    if source.batch > last + 1 and not permission.adopt_checkpoint:
        here = f"the sink at {last}: those between never came" if last >= 0 else "nothing of it came here yet"
        raise MisuseError(
            f"option checkpointLocation: it is at batch {source.batch}, {here}. "
            "adoptCheckpoint=true accepts that, for a query that moved here from another sink"
        )
    return False
