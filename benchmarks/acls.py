"""Measure what ACLs cost: one decision, and one change, with few ACLs and with 100,000.

scripts/bench --acls [--counts N,N] [--seconds S]

A decision is what a broker with an authorizer needs for each topic of a request. The usual one is remembered until the
ACLs change. The first one for a client and a topic is not, and must not depend on the number of ACLs either. A change
copies the indexes of all ACLs, so it does depend on their number. All of it runs in this process, without a broker. The
table has the fastest of several runs.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from oncelog.broker.repeated_lines import RepeatedLines
from oncelog.broker.requests.authorizer import StandardAuthorizer
from oncelog.cluster.acl_nodes import node_name
from oncelog.cluster.acls import NO_ACLS, Acl, AclSet
from oncelog.cluster.image import MetadataCache
from oncelog.net.session import Session
from oncelog.protocol.kinds import AclOperation, AclPermission, AclResource, PatternType

RUNS = 5
TOPIC, READ = AclResource.TOPIC, AclOperation.READ


def acls(count: int) -> Iterator[Acl]:
    """Yield ACLs of many users: nine of ten name one topic, and the others a prefix of one of ten lengths."""
    for number in range(count):
        prefixed = number % 10 == 0
        name = f"p{'x' * (number // 10 % 10)}{number}-" if prefixed else f"topic-{number}"
        pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
        yield Acl(TOPIC, name, pattern, f"User:u{number % 1000}", "*", READ, AclPermission.ALLOW)


class Image:
    """Only the part of an image that the authorizer reads."""

    def __init__(self, acls: AclSet) -> None:
        self.acls = acls


def fastest(work: Callable[[int], Any], seconds: float) -> float:
    """Return the seconds of one call. `work` gets another number in each call."""
    numbers = itertools.count()
    best = float("inf")
    for _ in range(RUNS):
        begun, calls = time.perf_counter(), 0
        while (taken := time.perf_counter() - begun) < seconds / RUNS:
            work(next(numbers))
            calls += 1
        best = min(best, taken / calls)
    return best


def measured(count: int, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield (what, seconds) for a cluster with this many ACLs."""
    known = {node_name(each): each for each in acls(count)}
    found = NO_ACLS.with_changes(known)
    cache: Any = MetadataCache.__new__(MetadataCache)
    cache.image = Image(found)
    lines = RepeatedLines(logging.getLogger("bench"), "requests")
    authorizer = StandardAuthorizer(cache, lines, frozenset(), allow_without_acls=False)
    session = Session()
    session.principal = "User:u7"
    yield "usual decision", fastest(lambda n: authorizer.allows(session, READ, TOPIC, "topic-7"), seconds)
    yield (
        "first decision, one topic",
        fastest(lambda n: found.decide("User:u7", "10.0.0.1", READ, TOPIC, f"topic-{n % max(count, 1)}"), seconds),
    )
    yield (
        "first decision, no ACL applies",
        fastest(lambda n: found.decide("User:u7", "10.0.0.1", READ, TOPIC, f"other-{n}"), seconds),
    )
    yield (
        "a producer without an id",
        fastest(lambda n: found.allows_some("User:u7", "10.0.0.1", AclOperation.WRITE, TOPIC), seconds),
    )
    one = next(acls(1))._replace(principal="User:new")
    yield "change of one ACL", fastest(lambda n: found.with_changes({"new": one}), seconds)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the cost of ACLs.")
    parser.add_argument("--counts", default="100,10000,100000", help="numbers of ACLs, separated by commas")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds for each figure")
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.counts.split(",")]
    columns = {count: dict(measured(count, arguments.seconds)) for count in counts}
    table = Table("microseconds", *(f"{count:,} ACLs" for count in counts), "last / first")
    for row in columns[counts[0]]:
        values = [columns[count][row] * 1e6 for count in counts]
        table.add_row(row, *(f"{value:,.2f}" for value in values), f"{values[-1] / values[0]:.2f} x")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
