"""What the sink must be permitted to do, by the operation that was denied."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oncelog.spark.commit import operations as op


def _names(topics: Iterable[str]) -> str:
    return ", ".join(sorted(set(topics)))


def _ids(*ids: str) -> str:
    prefix = ids[0].partition("/")[0] if ids else ""
    return (
        f"option transactionalIdPrefix={prefix}: the sink needs Write on the transactional ids {prefix} and "
        f"{prefix}/... (one ACL of pattern type prefixed)"
    )


def _topics(verb: str, topics: Iterable[str]) -> str:
    return f"option topic: the sink needs {verb} on {_names(topics)}"


NEEDED: dict[type, Callable[..., str]] = {
    op.DescribeTransactions: lambda o: _ids(*o.ids),
    op.InitProducerId: lambda o: _ids(o.id),
    op.EndTxn: lambda o: _ids(o.owner.id),
    op.EndAll: lambda o: _ids(*(owner.id for owner in o.owners)),
    op.AwaitEnded: lambda o: _ids(*(owner.id for owner in o.owners)),
    op.DescribeProducers: lambda o: _topics("Read (it looks for open transactions)", (at.topic for at in o.partitions)),
    op.FindMarkers: lambda o: _topics("Read (it looks for commit markers)", (place.at[0] for place in o.places)),
    op.ProduceRows: lambda o: "option topic, or column topic: the sink needs Write on it",
    op.ReadDecisions: lambda o: f"option decisionTopic: the sink needs Read on {o.at.topic}",
    op.Produce: lambda o: f"option decisionTopic: the sink needs Write on {o.at.topic}",
}
"""Operation: the option that is concerned, and the permission. ListTransactions leaves out what may not be described,
and WriteTxnMarkers has an outcome of its own (DENIED)."""


def needed(operation: op.Operation) -> str:
    """One sentence for a message."""
    describe = NEEDED.get(type(operation))
    return describe(operation) if describe is not None else "the sink is not permitted to do this"
