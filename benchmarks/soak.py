"""Use and misuse one broker with six client libraries, and compare its state at the end with that after five minutes.

    scripts/soak [--minutes N] [--load F] [--seed N] [--output FOLDER]

oncelog's client, Java's, librdkafka, franz-go, kafka-python and aiokafka produce, consume, rebalance and abort, while
`soak_mischief.py` misbehaves. The run begins with a calibration of the load: the clients' rates rise until the broker
uses the fraction `--load` of one core, or until the machine has no idle time left.

Every five seconds, the run samples the broker's memory, descriptors and threads. Two probes measure the latency of an
ApiVersions request and of a Produce request. `support.soak_report` computes the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.records import Record, build_batch
from support import suites
from support.apache_kafka import java
from support.processes import ManagedProcess
from support.servers import OncelogCluster
from support.soak_report import Plan, Sample, chart, judge, plan_of, write_csv
from support.wire import Wire

HERE = Path(__file__).parent
TOOLS = "org.apache.kafka.tools"
LIBRARIES = ("oncelog", "librdkafka", "kafka-python", "aiokafka")
SAMPLE_S = 5.0
PROBE_S = 0.05
QUIET_S = 90.0
"""A client that writes nothing for this long hangs. A rebalance and a timeout of 30 s may coincide."""
VISIT_S = 45.0
"""How often a second Java consumer joins its group. It stays for a third of this time."""
MOST_STARTS = 4
"""How often one client may be started. Foreign clients have races of their own; each failure is reported."""
LEAST_IDLE = 0.1
"""Fraction of the machine's time that is left idle: more records per second would only make the clients wait."""
FIRST_RATE, LEAST_RATE, MOST_RATE = 20.0, 2.0, 4000.0
SETTINGS = {
    "num.partitions": "4",
    "log.segment.bytes": str(1 << 20),
    "log.retention.bytes": str(4 << 20),
    "log.retention.check.interval.ms": "5000",
    "group.min.session.timeout.ms": "1000",
}
TICKS = os.sysconf("SC_CLK_TCK")


class Probe:
    """Measure one kind of request repeatedly, on its own connection and thread."""

    def __init__(self, bootstrap: str, ask: Callable[[Wire], object]) -> None:
        self._bootstrap, self._ask = bootstrap, ask
        self._times: list[float] = []
        self.failures = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                with Wire(self._bootstrap) as wire:
                    while True:
                        began = time.perf_counter()
                        self._ask(wire)
                        self._times.append((time.perf_counter() - began) * 1000)
                        time.sleep(PROBE_S)
            except (OSError, AssertionError):
                self.failures += 1
                time.sleep(1)

    def taken(self) -> tuple[float, float]:
        """Return (median, largest) in ms of the requests since the last call, or the interval if there were none."""
        times, self._times = self._times, []
        return (statistics.median(times), max(times)) if times else (SAMPLE_S * 1000, SAMPLE_S * 1000)


def last_line(process: ManagedProcess) -> str:
    """Return the last line that a process has written to stderr."""
    lines = process.stderr_path.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1]:.200}" if lines else "no message"


class Runner:
    """A client's process. It is restarted if it ends."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name, self._command, self._folder = name, command, folder
        self.ends: list[str] = []
        self._start()

    def _start(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parent / "tests"), str(HERE)))}
        self.process = ManagedProcess(self._command, self._folder, f"{self.name}-{len(self.ends)}", env)

    def look(self) -> None:
        """If the process has ended, record how, and restart it."""
        if self.process.popen.poll() is not None and len(self.ends) < MOST_STARTS:
            self.ends.append(f"{self.name} ended with {self.process.popen.returncode}: {last_line(self.process)}")
            print(self.ends[-1], flush=True)
            self._start()

    def problem(self) -> str:
        """Return the client's problem at the end of a run, "" if there is none."""
        if len(self.ends) >= MOST_STARTS:
            return f"{self.name} has ended {len(self.ends)} times, the last time with: {self.ends[-1]}"
        quiet = time.time() - self.process.stdout_path.stat().st_mtime
        return f"{self.name} has written nothing for {quiet:.0f} s" if quiet > QUIET_S else ""


def commands(bootstrap: str, rate_file: Path, seed: str, go_program: Path) -> dict[str, list[str]]:
    """Return the command line of each client that runs during the whole soak."""
    python = [sys.executable, "-u"]
    found = {name: [*python, str(HERE / "soak_client.py"), name, bootstrap, str(rate_file), seed] for name in LIBRARIES}
    found["mischief"] = [*python, str(HERE / "soak_mischief.py"), bootstrap, seed]
    found["franz-go"] = [str(go_program), bootstrap, f"soak-go-{seed}", "soak", str(rate_file)]
    produce = ["--bootstrap-server", bootstrap, "--topic", "soak-java", "--num-records", "2000000000"]
    produce += ["--throughput", "100", "--record-size", "300", "--transactional-id", "soak-java-producer"]
    found["java-producer"] = java(f"{TOOLS}.ProducerPerformance", *produce, heap="96m")
    found["java-consumer"] = java_consumer(bootstrap)
    return found


def java_consumer(bootstrap: str) -> list[str]:
    """Return the command line of a group member that reads the copier's output."""
    read = ["--bootstrap-server", bootstrap, "--topic", "soak-java-copy", "--group-id", "soak-java-readers"]
    return java(f"{TOOLS}.VerifiableConsumer", *read, "--session-timeout", "6000", heap="96m")


def java_copier(bootstrap: str) -> list[str]:
    """Return the command line of a program that copies all records in transactions, aborts some, and ends."""
    copy = ["--broker-list", bootstrap, "--input-topic", "soak-java", "--input-partition", "0", "--output-topic"]
    copy += ["soak-java-copy", "--max-messages", "2000000000", "--consumer-group", "soak-java-copier"]
    copy += ["--transaction-size", "100", "--transactional-id", "soak-java-copier", "--enable-random-aborts"]
    return java(f"{TOOLS}.TransactionalMessageCopier", *copy, "--group-mode", heap="96m")


class Visitor:
    """A program that runs from time to time. It leaves, is killed or ends after a third of `VISIT_S`."""

    def __init__(self, name: str, command: list[str], folder: Path, chance: random.Random) -> None:
        self._name, self._command, self._folder, self._chance = name, command, folder, chance
        self._process: ManagedProcess | None = None
        self._next = time.monotonic() + VISIT_S * chance.uniform(0.2, 0.6)
        self.failures: list[str] = []

    def look(self) -> None:
        """Start or stop the program if it is time."""
        if time.monotonic() < self._next:
            return
        if self._process is None:
            self._process = ManagedProcess(self._command, self._folder, self._name)
            self._next = time.monotonic() + VISIT_S / 3
        else:
            self.leave()
            self._next = time.monotonic() + VISIT_S

    def leave(self) -> None:
        """Stop or kill the program, by chance. If it has already failed, report it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.popen.poll():
            self.failures.append(f"{self._name} ended with {process.popen.returncode}: {last_line(process)}")
            print(self.failures[-1], flush=True)
        elif self._chance.random() < 0.5:
            process.kill()
        else:
            process.stop()


class Broker:
    """The operating system's statistics of the broker's process."""

    def __init__(self, server: OncelogCluster) -> None:
        self.pid = server.broker_pid()
        self._folder = Path("/proc") / str(self.pid)
        self._last = (self._cpu_s(), time.monotonic())

    def _cpu_s(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def cpu(self) -> float:
        """Return the CPU time since the last call, divided by the elapsed time."""
        before, self._last = self._last, (self._cpu_s(), time.monotonic())
        return (self._last[0] - before[0]) / max(self._last[1] - before[1], 0.001)

    def memory_mb(self) -> float:
        """Return the anonymous resident memory."""
        found = re.search(r"RssAnon:\s+(\d+) kB", (self._folder / "status").read_text())
        return int(found[1]) / 1024 if found else 0.0

    def count(self, what: str) -> int:
        """Return the number of entries of `fd` or `task`."""
        return len(list((self._folder / what).iterdir()))


class Machine:
    """The operating system's statistics of all processors."""

    def __init__(self) -> None:
        self._last = self._times()

    def _times(self) -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return times[3] + times[4], sum(times)

    def idle(self) -> float:
        """Return the idle fraction of time since the last call."""
        before, self._last = self._last, self._times()
        return (self._last[0] - before[0]) / max(self._last[1] - before[1], 1)


class Soak:
    """One run."""

    def __init__(self, server: OncelogCluster, folder: Path, plan: Plan, load: float, seed: str) -> None:
        self.server, self.plan, self.load = server, plan, load
        self.samples: list[Sample] = []
        self._rate, self._rate_file = FIRST_RATE, folder / "rate"
        self._set_rate(FIRST_RATE)
        go_program = suites.go_program()
        with Wire(server.bootstrap) as wire:
            for topic in ("soak-probe", "soak-java", "soak-java-copy"):
                wire.create_topic(topic, 4)
        self.broker, self.machine = Broker(server), Machine()
        hello = ApiVersionsRequest(client_software_name="probe", client_software_version="1")
        record = build_batch([Record(0, 1, None, bytes(100))])
        self.delay = Probe(server.bootstrap, lambda wire: wire.call(hello, 3))
        self.produce = Probe(server.bootstrap, lambda wire: wire.produce("soak-probe", record))
        every = commands(server.bootstrap, self._rate_file, seed, go_program)
        self.runners = [Runner(name, command, folder) for name, command in every.items()]
        visits = {"java-visitor": java_consumer(server.bootstrap), "java-copier": java_copier(server.bootstrap)}
        self.visitors = [
            Visitor(name, command, folder, random.Random(f"{seed} {name}")) for name, command in visits.items()
        ]

    def _set_rate(self, rate: float) -> None:
        self._rate = min(MOST_RATE, max(LEAST_RATE, rate))
        draft = self._rate_file.with_suffix(".new")
        draft.write_text(f"{self._rate:.1f}\n")
        draft.replace(self._rate_file)

    def run(self) -> None:
        """Take samples until the end of the plan."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < self.plan.end[1]:
            time.sleep(min(SAMPLE_S, self.plan.end[1] - passed))
            sample = self._sample(time.monotonic() - began)
            self.samples.append(sample)
            if len(self.samples) % 6 == 0:
                print(
                    f"{sample.seconds / 60:5.1f} min: {sample.memory_mb:.0f} MB, {sample.descriptors} descriptors, "
                    f"{sample.threads} threads, delay {sample.delay_ms:.1f} ms, produce {sample.produce_ms:.1f} ms, "
                    f"{sample.cpu:.2f} cores, {sample.rate:.0f} records/s per client",
                    flush=True,
                )
            idle = self.machine.idle()
            if sample.seconds < self.plan.calibrated:
                most = 1.3 if idle > 2 * LEAST_IDLE else 1.0 if idle > LEAST_IDLE else 0.8
                self._set_rate(self._rate * min(most, max(0.7, self.load / max(sample.cpu, 0.01))))
            for runner in self.runners:
                runner.look()
            for visitor in self.visitors:
                visitor.look()

    def _sample(self, seconds: float) -> Sample:
        broker = self.broker
        return Sample(
            seconds, broker.memory_mb(), broker.count("fd"), broker.count("task"), broker.cpu(), *self.delay.taken(),
            *self.produce.taken(), self._rate,
        )  # fmt: skip

    def problems(self) -> list[str]:
        """Return the problems that are not part of the verdict."""
        found = [problem for problem in (runner.problem() for runner in self.runners) if problem]
        often = [visitor.failures for visitor in self.visitors if len(visitor.failures) >= MOST_STARTS]
        found += [f"{failures[-1]} (and {len(failures)} failures in all)" for failures in often]
        if self.server.broker_pid() != self.broker.pid:
            found.append("the broker has died")
        lost = self.delay.failures + self.produce.failures
        return [*found, f"a probe lost its connection {lost} times"] if lost else found

    def stop(self) -> None:
        """End every process."""
        for visitor in self.visitors:
            visitor.leave()
        for runner in self.runners:
            runner.process.kill()


@contextlib.contextmanager
def soaking(folder: Path, plan: Plan, load: float, seed: str) -> Iterator[Soak]:
    """Run a broker with all clients. All of them end with the block."""
    server = OncelogCluster(folder, settings=SETTINGS)
    try:
        soak = Soak(server, folder, plan, load, seed)
        try:
            yield soak
        finally:
            soak.stop()
    finally:
        server.stop()


def main() -> int:
    """Run from the command line. Return 1 if the broker is worse at the end, or if a client failed."""
    parser = argparse.ArgumentParser(description="Run six client libraries against one broker for a long time.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--load", type=float, default=0.5, help="target CPU of the broker; 1 is one core")
    parser.add_argument("--seed", default=str(random.randrange(1 << 32)))
    parser.add_argument("--output", type=Path, default=HERE.parent / ".cache" / "soak", help="for soak.csv, soak.svg")
    arguments = parser.parse_args()
    plan = plan_of(arguments.minutes)
    print(f"seed {arguments.seed}", flush=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    made = tempfile.TemporaryDirectory(prefix="oncelog-soak-", ignore_cleanup_errors=True)
    with made as folder, soaking(Path(folder), plan, arguments.load, arguments.seed) as soak:
        try:
            soak.run()
        finally:
            if soak.samples:
                write_csv(soak.samples, arguments.output / "soak.csv")
                title = f"oncelog up, six client libraries, {arguments.load:g} cores, seed {arguments.seed}"
                (arguments.output / "soak.svg").write_text(chart(soak.samples, plan, title))
        problems = soak.problems()
    verdicts = judge(soak.samples, plan)
    cpu = statistics.median(each.cpu for each in soak.samples if each.seconds >= plan.calibrated)
    print(f"load: {cpu:.2f} cores of the broker at {soak.samples[-1].rate:.0f} records/s for each client")
    print(*verdicts, *problems, f"{arguments.output}/soak.csv, soak.svg", sep="\n")
    return 1 if problems or not all(each.good for each in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
