"""Attack a real broker with legal requests; measure its memory and how long another client waits.

    scripts/bench --attacks [NAME ...] [--list]

Each attack runs against its own broker, on a new directory. Meanwhile, a probing client in another process alternates
ApiVersions and Produce. `grown` is the growth of the broker's anonymous memory after the attack, while the attacker's
connections are still open. `peak` is the largest growth during the attack; the limit applies to the peak. `stall` is
the longest wait of the probe. `CPU` is the longest time that one step of the broker computed, among the steps that held
the loop for 50 ms; other work on the machine hardly affects it. `login` is the longest login of a second probe, on a
broker with TLS and logins. After each attack, every partition must serve requests.
The exit status is 1 if a limit is exceeded.

On a busy machine, the probe waits for a processor. If the load is above half the processors, the limit of the stall is
250 ms.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import attack_logins as logins
import attack_recovery as recovery
import attack_requests as requests
import attack_resources as resources
import secured_target as secured
from attack_target import Memory, Probe, Target, alternating
from rich.console import Console
from rich.table import Table

MEMORY_MB = 100
STALL_MS = 50
BUSY_STALL_MS = 250
LOGIN_MS, BUSY_LOGIN_MS = 1000, 5000
"""How long a login may take, with the new attempts if the connection is closed."""
SHOWN_STALLS = 8
BUSY_LOAD = 0.5
"""Load average for each processor, as it was before the first attack, above which the machine is busy."""


class Attack(NamedTuple):
    """One row of the table."""

    name: str
    sends: str
    run: Callable[[Target], None]
    memory_mb: int = MEMORY_MB
    stall_ms: int = STALL_MS
    large: bool = False
    """Whether the broker has 2,000 topics of 10 partitions."""
    settings: Mapping[str, str] = {}
    secured: bool = False
    """Whether the broker has TLS, logins and an authorizer. Then a second probe logs in again and again."""
    before: Callable[[Target], None] | None = None
    """Prepare the broker before the probe and the measurement of memory start."""


NO_DELAY = {"log.segment.delete.delay.ms": "0"}

# A batch may decompress to 128 MiB, one at a time: the limit of that row is higher than the others.
ATTACKS = (
    Attack("refused-produces", "300 Produces of 9 MB, rejected", resources.refused_produces),
    Attack("refused-syncs", "90 SyncGroups of 10 MB, rejected", resources.refused_syncs),
    Attack("huge-counts", "CreateTopics with +2147483647 and -2147483647 partitions", resources.huge_counts),
    Attack("descriptors", "200 connections to a broker with 20 free descriptors", resources.descriptors),
    Attack("slow-readers", "30 clients that do not read 50 MB", resources.slow_readers),
    Attack("slow-small-reads", "30 clients that do not read 1,000 batches of 50 KB",
           resources.slow_readers_of_small_batches),
    Attack("waiting-joins", "1,500 JoinGroups of 4.2 KB that wait", resources.waiting_joins),
    Attack("waiting-fetches", "200 Fetches of 5,000 partitions that wait", resources.waiting_fetches, 200,
           before=resources.make_waited),
    Attack("failed-group-writes", "200 assignments of 2 MB that do not fit", resources.failed_group_writes),
    Attack("half-frames", "300 connections that announce 100 MB", resources.half_frames),
    Attack("deleted-topic", "deletion of a topic of 1 GiB", resources.deleted_topic, settings=NO_DELAY),
    Attack("deleted-records", "DeleteRecords of all of 1 GiB", resources.deleted_records, settings=NO_DELAY),
    Attack("recompression", "50 batches that grow to 10 MB with the topic's codec", resources.recompression),
    Attack("record-errors", "5 small Produces with 400,000 invalid records", resources.record_errors),
    Attack("stored-bomb", "ListOffsets by time in a batch of 1,000,000 records", resources.stored_bomb),
    Attack("compacted-bomb", "Produce of 1,000,000 records to a compacted topic", resources.compacted_bomb),
    Attack("two-bombs", "Produce of two batches of 1,000,000 records to one partition", resources.two_bombs),
    Attack("large-bomb", "Produce of 1 GB, compressed, to a compacted topic", resources.large_bomb, 150),
    Attack("handshake-flood", "5,000 TLS handshakes begun and dropped", logins.handshake_flood, secured=True),
    Attack("handshake-bursts", "30 times 100 TLS handshakes at once", logins.handshake_bursts, secured=True),
    Attack("slow-handshakes", "300 TLS handshakes, one byte at a time", logins.slow_handshakes, secured=True),
    Attack("half-open", "10,000 connections that send nothing or half a message", logins.half_open, secured=True),
    Attack("unfinished-logins", "1,000 logins in TLS without an end", logins.unfinished_logins, secured=True),
    Attack("wrong-scram", "3,000 SCRAM logins with wrong passwords", logins.wrong_scram, secured=True),
    Attack("wrong-plain", "3,000 PLAIN logins with wrong passwords", logins.wrong_plain, secured=True),
    Attack("huge-tokens", "300 messages of SASL of 500 KB, 300 of 100 MB", logins.huge_tokens, secured=True),
    Attack("unfinished-tokens", "150 messages of SASL of 500 KB without an end", logins.unfinished_tokens, 200,
           secured=True),
    Attack("early-requests", "2,000 connections with requests before the login", logins.early_requests, secured=True),
    Attack("denied-requests", "20,000 small denied requests, 10 with 10,000 topics", logins.denied_requests,
           secured=True),
    Attack("encrypted-reads", "16 Fetches of 50 MB over TLS", logins.encrypted_reads, secured=True,
           before=logins.write_large),
    Attack("slow-encrypted-reads", "30 clients that do not read 50 MB over TLS", logins.slow_encrypted_reads,
           secured=True, before=logins.write_large),
    Attack("unknown-names", "Metadata of 20,000 unknown names", requests.unknown_names, large=True),
    Attack("all-metadata", "Metadata of all topics, 30,000 partitions", requests.all_metadata, large=True),
    Attack("all-configs", "DescribeConfigs of 2,000 topics", requests.all_configs, 200, large=True),
    Attack("offsets", "ListOffsets of 10,000 partitions", requests.offsets, large=True),
    Attack("group-offsets", "OffsetFetch of all 20,000 offsets of a group", requests.group_offsets, large=True),
    Attack("commits", "OffsetCommit for 10,000 partitions", requests.commits, large=True),
    Attack("coordinators", "FindCoordinator of 100,000 keys", requests.coordinators, large=True),
    Attack("producers", "DescribeProducers of 20,000 producers, 20,000 partitions", requests.producers, large=True),
    Attack("groups", "ListGroups and DescribeGroups of 10,000", requests.groups, large=True),
    Attack("transactions", "ListTransactions of 5,000 ids", requests.transactions, large=True),
    Attack("delete-records", "DeleteRecords of 10,000 partitions", requests.delete_records, large=True),
    Attack("epochs", "OffsetForLeaderEpoch of 10,000 partitions", requests.epochs, large=True),
    Attack("create-topics", "CreateTopics and DeleteTopics of 1,000 x 10, 1 x 10,000", requests.create_topics, 200,
           large=True),
    Attack("transaction-partitions", "AddPartitionsToTxn and EndTxn of 10,000", requests.transaction_partitions,
           large=True),
    Attack("full-fetches", "Fetch of 10,000 partitions, in sessions", requests.full_fetches, large=True),
    Attack("log-dirs", "DescribeLogDirs of 30,000 partitions", requests.log_dirs, large=True),
    Attack("topic-partitions", "DescribeTopicPartitions of 2,000 topics", requests.topic_partitions, large=True),
    Attack("scrapes", "10 scrapes of the metrics of 10,000 partitions", requests.scrapes, large=True,
           settings={"metrics.port": "0"}, before=requests.open_logs),
    Attack("wide-produce", "Produce to 10,000 partitions", requests.wide_produce, 200, large=True),
    Attack("recovery", "ListOffsets and Produce of 2,000 logs after a kill", recovery.read_many_logs,
           before=recovery.write_many_logs),
    Attack("large-recovery", "ListOffsets and Produce of a log of 100 MB after a kill", recovery.read_large_log,
           before=recovery.write_large_log),
    Attack("large-batch", "Produce of 50 MB to a topic that compresses", requests.large_batch, 200),
    Attack("huge-requests", "100 MB of the smallest items, of 7 APIs", requests.huge_requests, 150, large=True),
)  # fmt: skip


class Result(NamedTuple):
    """The result of one attack."""

    grown_mb: float
    peak_mb: float
    stall_ms: float
    seconds: float
    stalls: list[str]
    """What the broker logged itself."""
    login_ms: float = 0.0
    """The longest login of the second probe, if there is one."""
    error: str = ""

    @property
    def cpu_ms(self) -> int:
        """Return the longest CPU time of one logged stall."""
        return max((_logged(r"\((\d+) ms of CPU\)", line) for line in self.stalls), default=0)

    @property
    def longest(self) -> list[str]:
        """Return the longest of the logged stalls."""
        return sorted(self.stalls, key=lambda line: -_logged(r"event loop for (\d+) ms", line))[:SHOWN_STALLS]


def _logged(pattern: str, line: str) -> int:
    return max(map(int, re.findall(pattern, line)), default=0)


def run_attack(attack: Attack, template: Path) -> Result:
    """Run one attack against its own broker. `template`: see `Target`."""
    with tempfile.TemporaryDirectory(prefix="oncelog-attack-") as folder:
        kind = secured.SecuredTarget if attack.secured else Target
        target = kind(Path(folder) / "broker", large=attack.large, settings=attack.settings, template=template)
        probes: list[Probe] = []
        try:
            if attack.before is not None:
                attack.before(target)
            before = target.pid
            seen = len(target.stalls())
            probes.append(Probe(alternating(target)))
            if attack.secured:
                probes.append(Probe(secured.logins(target)))
            started, error = time.monotonic(), ""
            with Memory(target.pid) as memory:
                for probe in probes:
                    probe.reset()
                try:
                    attack.run(target)
                    for probe in probes:
                        probe.settle()
                    memory.settle()
                    assert target.pid == before, "the broker died"
                except Exception:  # noqa: BLE001 - any failure is this attack's result
                    error = traceback.format_exc(limit=-3)
            seconds, (stall_ms, *login_ms) = time.monotonic() - started, [probe.longest_ms for probe in probes]
            stalls = target.stalls()[seen:]
            target.release()
            if not error:
                try:
                    target.check_serves()
                except Exception:  # noqa: BLE001 - as above
                    error = traceback.format_exc(limit=-2)
            return Result(memory.grown_mb, memory.peak_mb, stall_ms, seconds, stalls, sum(login_ms), error)
        finally:
            for probe in probes:
                probe.stop()
            target.stop()


def broken(attack: Attack, result: Result, *, busy: bool) -> list[str]:
    """Return the limits that an attack has exceeded."""
    found = []
    if result.peak_mb > attack.memory_mb:
        found.append("memory")
    if result.stall_ms > (max(attack.stall_ms, BUSY_STALL_MS) if busy else attack.stall_ms):
        found.append("stall")
    if result.login_ms > (BUSY_LOGIN_MS if busy else LOGIN_MS):
        found.append("login")
    if result.error:
        found.append("service")
    return found


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Attack a real broker. The exit status is 1 if a limit is exceeded.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="attacks to run (all)")
    parser.add_argument("--list", action="store_true", help="list the attacks and do nothing")
    arguments = parser.parse_args()
    known = {attack.name: attack for attack in ATTACKS}
    if arguments.list:
        for attack in ATTACKS:
            print(f"{attack.name:24} {attack.sends}")
        return 0
    wrong = [name for name in arguments.names if name not in known]
    if wrong:
        parser.error(f"unknown attack {', '.join(wrong)}; --list lists them")
    chosen = [known[name] for name in arguments.names] or list(ATTACKS)
    load = os.getloadavg()[0]
    busy = load > BUSY_LOAD * (os.cpu_count() or 1)
    console = Console(width=160)
    console.print(f"load average {load:.2f}: the machine is {'busy' if busy else 'not busy'}")
    table = Table(
        "attack", "sends", "grown MB", "peak MB", "limit", "stall ms", "limit", "CPU ms", "login ms", "s", "broken"
    )
    failed = False
    folder = tempfile.TemporaryDirectory(prefix="oncelog-attacked-")
    for attack in chosen:
        result = run_attack(attack, Path(folder.name) / "template")
        found = broken(attack, result, busy=busy)
        failed |= bool(found)
        stall_limit = max(attack.stall_ms, BUSY_STALL_MS) if busy else attack.stall_ms
        cells = [attack.name, attack.sends, f"{result.grown_mb:.0f}", f"{result.peak_mb:.0f}", str(attack.memory_mb)]
        cells += [
            f"{result.stall_ms:.0f}",
            str(stall_limit),
            str(result.cpu_ms),
            f"{result.login_ms:.0f}" if attack.secured else "",
            f"{result.seconds:.1f}",
            ", ".join(found),
        ]
        table.add_row(*cells)
        print("  ".join(cells), flush=True)
        for line in [*result.longest, *result.error.splitlines()]:
            print(f"    {line}", flush=True)
    folder.cleanup()
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
