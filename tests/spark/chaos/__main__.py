"""The command line: `scripts/chaos --help`."""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from spark.chaos.faults import KINDS
from spark.chaos.judge import Count
from spark.chaos.run import Plan, Run
from support.secured_cluster import SecuredCluster

MASTERS = ("local[2,4]", "local-cluster[2,1,1024]", "standalone")
SERVERS = ("oncelog", "apache-kafka")
SEVERAL = {1: "oncelog", 3: "oncelog-3"}
"""Number of brokers -> name of the server."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos",
        description="Copy a topic with Spark while driver, executors, Python workers and broker are killed with -9 at "
        "random, and drivers are suspended and continued beside their successors. The exit status is 1 if rows were "
        "lost or duplicated. With --only broker, a query that ends is a failure, too.",
    )
    parser.add_argument("--rounds", type=int, default=20, help="faults (20)")
    parser.add_argument("--batches", type=float, default=3, help="micro-batches per fault (3)")
    parser.add_argument("--records", type=int, default=1_000_000, help="rows (1000000)")
    parser.add_argument("--server", action="append", choices=SERVERS, help="repeat for several (oncelog)")
    parser.add_argument(
        "--brokers", type=int, choices=SEVERAL, default=1, help="of oncelog; faults kill each in turn (1)"
    )
    parser.add_argument(
        "--secured", action="store_true", help="three brokers of oncelog with TLS, logins and permissions"
    )
    parser.add_argument("--master", action="append", help=f"repeat for several ({MASTERS[0]}); others: {MASTERS[1:]}")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="of the faults")
    parser.add_argument("--only", action="append", choices=KINDS, help="repeat for several (all kinds)")
    parser.add_argument("--level", type=int, choices=(0, 1, 2), help="the server's transaction.version (2)")
    parser.add_argument("--beside", action="store_true", help="the same with Spark's own sink: $ONCELOG_SPARK_RIVAL")
    parser.add_argument("--keep", action="store_true", help="keep data and logs")
    given = parser.parse_args()
    if given.brokers > 1 and "apache-kafka" in (given.server or ()):
        parser.error("--brokers 3 is for --server oncelog only; omit --server apache-kafka")
    if given.secured and (given.server or given.beside or given.brokers > 1):
        parser.error("--secured runs three brokers of oncelog; omit --server, --brokers and --beside")
    return given


def plans(given: argparse.Namespace) -> list[Plan]:
    made: list[Plan] = []
    only = tuple(given.only or ())
    for server in given.server or SERVERS[:1]:
        for master in given.master or MASTERS[:1]:
            name = SEVERAL[given.brokers] if server == "oncelog" else server
            name = SecuredCluster.name if given.secured else name
            plan = Plan(name, master, "oncelog", given.rounds, given.records, given.seed)
            made.append(replace(plan, batches=given.batches, only=only, level=given.level))
            if given.beside:
                rival = Path(os.environ["ONCELOG_SPARK_RIVAL"])
                jars = ",".join(str(jar) for jar in sorted((rival / "jars").glob("*.jar")))
                python = str(rival / "venv" / "bin" / "python")
                made.append(replace(made[-1], form="kafka", python=python, jars=jars))
    return made


def table(results: list[tuple[Plan, Run, Count, float]]) -> Table:
    shown = Table(title="each row exactly once, read with read_committed by librdkafka", box=box.SIMPLE_HEAD)
    for title in ("sink", "server", "master", "killed -9", "drivers", "ended", "s"):
        shown.add_column(title, no_wrap=True)
    for title in ("in", "out", "lost", "duplicated", "wrong"):
        shown.add_column(title, justify="right", no_wrap=True)
    for plan, run, count, seconds in results:
        killed = " ".join(f"{kind} {number}" for kind, number in sorted(run.killed.items()))
        name = "oncelog" if plan.form == "oncelog" else "Spark's own"
        shown.add_row(
            name, plan.server, plan.master.replace("[", r"\["), killed, str(run.starts),
            str(run.failed.total()), f"{seconds:.0f}",
            *(f"{n:,}" for n in count),
        )  # fmt: skip
    return shown


def main() -> None:
    given = arguments()
    console = Console(width=170)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="oncelog-chaos-"))
    results: list[tuple[Plan, Run, Count, float]] = []
    right = True
    try:
        for number, plan in enumerate(plans(given)):
            console.print(f"{plan.form} on {plan.server}, {plan.master}, seed {plan.seed}", markup=False)
            started = time.monotonic()
            with Run(plan, folder / str(number), lambda text: console.print(text, markup=False)) as run:
                count = run.go()
            results.append((plan, run, count, time.monotonic() - started))
            good = count.lost == count.duplicated == count.wrong == 0
            if plan.kinds == ("broker",):
                good = good and not run.failed  # a restart of the broker must not end a query
            right = right and (good or plan.form != "oncelog")
        console.print(table(results))
    finally:
        if right and results and not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"data and logs: {folder}")
    sys.exit(not right)


if __name__ == "__main__":
    main()
