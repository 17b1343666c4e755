"""What programs have written, compared with what readers find: nothing is lost, doubled, or out of order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from support.replica_invariants import InvariantError

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


@dataclass
class Written:
    """One transaction as its writer knows it.

    To each of its partitions, it writes the records `value` and `value` + b"+", which no other transaction writes.
    """

    value: bytes
    name: str = ""
    """The writer's transactional id, if the world has several writers with one id."""
    partitions: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)
    offset: int = -1
    """The offset of the writer's group in this transaction."""
    outcome: str = UNKNOWN


def check_transaction(written: Written, visible: Sequence[Sequence[bytes | None]]) -> None:
    """Check that a transaction is whole or invisible, in order and not doubled. Invariant 8.

    `visible` has the committed values of each partition. Without the response to EndTxn, both outcomes are right.
    """
    pair = [written.value, written.value + b"+"]
    found = {partition: [each for each in values if each in pair] for partition, values in enumerate(visible)}
    seen = {partition for partition, values in found.items() if values}
    if written.outcome is COMMITTED:
        wrong = seen != written.partitions
    elif written.outcome is ABORTED:
        wrong = bool(seen)
    else:
        wrong = bool(seen) and not written.acknowledged <= seen <= written.partitions
    if wrong or any(found[partition] != pair for partition in seen):
        raise InvariantError(8, f"{written} is visible as {found}")


def check_once(wanted: Iterable[object], found: Iterable[object]) -> None:
    """Check that readers find each wanted record once, or as often as it is wanted, and no other one."""
    expected, seen = Counter(wanted), Counter(found)
    lost, extra = [*(expected - seen)], [*(seen - expected)]
    assert seen == expected, f"lost {lost}, doubled or unknown {extra}"
