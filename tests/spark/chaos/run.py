"""One run: a server, a Spark, a pipeline, and the faults."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from oncelog import Admin
from oncelog.client.admin.acls import AclBinding
from spark.chaos import judge, pipeline
from spark.chaos.faults import KINDS, Fault, draw
from spark.chaos.processes import Census, of_kind, signal_all
from spark.chaos.standalone import Standalone
from support.fixtures import SERVERS
from support.processes import POLL, ManagedProcess, wait_until
from support.secured_cluster import WRITER, SecuredCluster, our_options

STALLED = 600.0
"""Seconds without a new batch after which a run has failed."""
PARTITIONS = 3
CAUSE = re.compile(r"^[\w.]+(?:Error|Exception): .+", re.MULTILINE)
"""A line of a driver's stderr that names an exception. The last one is closest to the cause."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run."""

    server: str
    master: str
    form: str
    """`oncelog`, or `kafka`: Spark's own sink."""
    rounds: int
    records: int
    seed: int
    python: str = sys.executable
    """The Python whose PySpark runs the pipeline."""
    jars: str = ""
    span: float = 1.5
    batches: float = 3
    """Micro-batches in each round."""
    only: tuple[str, ...] = ()
    """The kinds of faults. Empty: all."""
    level: int | None = None
    """The server's transaction.version; None: its default."""
    values: judge.Values = judge.TEXTS

    @property
    def wanted(self) -> int:
        """Return the number of micro-batches in which faults occur."""
        return int(self.rounds * self.batches)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of faults that this master supports."""
        local = self.master.startswith("local[")
        return tuple(kind for kind in self.only or KINDS if not (local and kind == "executor"))


@dataclass
class Run:
    """The running pipeline and its faults."""

    plan: Plan
    folder: Path
    say: Callable[[str], None]
    census: Census = field(default_factory=Census)
    killed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Why drivers ended without being killed."""
    starts: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.plan.seed)
        self.checkpoint = self.folder / "checkpoint"
        self.rows = max(self.plan.records // (self.plan.wanted + 2), 1)
        self.frozen: ManagedProcess | None = None

    def __enter__(self) -> Run:
        self.server = SERVERS[self.plan.server](self.folder / "server")
        self.login = self.server.options() if isinstance(self.server, SecuredCluster) else {}
        """Options of the administrator's clients, by librdkafka's names."""
        self.options_file = self.folder / "options.json"
        self.cluster = None
        self.driver: ManagedProcess | None = None
        try:
            if self.plan.master == "standalone":
                self.cluster = Standalone(self.folder / "spark", home(self.plan.python))
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.census.look(self.roots)
        for driver in (self.driver, self.frozen):
            if driver is not None:
                driver.kill()
        if self.cluster is not None:
            self.cluster.stop()
        self.census.end()
        self.server.stop()

    @property
    def roots(self) -> list[int]:
        """Return the processes whose descendants are all of Spark's."""
        drivers = [d.pid for d in (self.driver, self.frozen) if d is not None and d.popen.poll() is None]
        return drivers + (self.cluster.pids if self.cluster is not None else [])

    def start_driver(self) -> ManagedProcess:
        """Start the pipeline, or restart it."""
        self.starts += 1
        master = self.cluster.url if self.cluster is not None else self.plan.master
        program = [self.plan.python, pipeline.__file__, self.plan.form, master, self.server.bootstrap, "in", "out"]
        program += [str(self.checkpoint), str(self.rows), self.plan.jars, str(self.options_file)]
        # In its own folder, because local-cluster writes the executors' files there.
        folder = self.folder / f"driver-{self.starts}"
        folder.mkdir(parents=True)
        return ManagedProcess(["/usr/bin/env", "-C", str(folder), *program], folder, "driver")

    def batches(self) -> int:
        """Return the number of batches in Spark's commit log, which keeps the files of the last hundred."""
        folder = self.checkpoint / "commits"
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    def go(self) -> judge.Count:
        """Write the rows, run the faults, count the rows."""
        judge.fill(self.server.bootstrap, "in", "out", self.plan.records, PARTITIONS, self.login, self.plan.values)
        self.allow_pipeline()
        self.options_file.touch(0o600)
        self.options_file.write_text(json.dumps({**self.pipeline_login(), **self.plan.values.options}))
        wanted = self.plan.wanted
        if self.plan.level is not None:
            self.set_level(self.plan.level)
        faults = draw(self.rng, self.plan.rounds, wanted, self.plan.kinds, self.plan.span)
        self.driver = self.start_driver()
        for number, fault in enumerate(faults, 1):
            if self.wait_for_batch(fault.batch):
                break
            time.sleep(fault.delay)
            self.say(f"round {number}, {self.batches()} batches: {fault.kind} {fault.delay:.2f} s later")
            self.strike(fault)
        self.wait_for_batch(None)
        if self.plan.form == "oncelog":
            self.check_nothing_open()
        return judge.count(self.server.bootstrap, "out", self.plan.records, self.login, self.plan.values)

    def allow_pipeline(self) -> None:
        """On secured brokers, let the pipeline log in as a user with the permissions that docs/spark.md lists."""
        if not isinstance(self.server, SecuredCluster):
            return
        user = f"User:{WRITER}"
        decisions = "out-sink-commits"
        with Admin(self.server.bootstrap, **our_options(self.login)) as admin:
            admin.create_topics([decisions], 1, configs={"cleanup.policy": "compact"})
            allowed = {"in": ("read",), "out": ("read", "write"), decisions: ("read", "write")}
            acls = [AclBinding("topic", name, user, each) for name, every in allowed.items() for each in every]
            admin.create_acls([*acls, AclBinding("transactional_id", "out-sink", user, "write", "prefixed")])

    def pipeline_login(self) -> dict[str, str]:
        """Return the options of source and sink for a login. Without secured brokers, there are none."""
        if not isinstance(self.server, SecuredCluster):
            return {}
        return {f"kafka.{name}": value for name, value in self.server.options(WRITER).items()}

    def set_level(self, level: int) -> None:
        """Change the server's transaction.version."""
        with Admin(self.server.bootstrap, **our_options(self.login)) as admin:
            known = {item.name: item.level for item in admin.describe_features()}["transaction.version"]
            if known != level:
                kind = "upgrade" if level > known else "unsafe_downgrade"
                admin.update_features({"transaction.version": level}, kind)

    def wait_for_batch(self, batch: int | None) -> bool:
        """Return when so many batches are done. Restart drivers that end. True: the pipeline has ended successfully."""
        last, changed = self.batches(), time.monotonic()
        while True:
            assert self.driver is not None
            self.census.look(self.roots)
            status = self.driver.popen.poll()
            if status == 0:
                return True
            if status is not None:
                self.note_failure(self.driver)
                self.driver = self.start_driver()
            done = self.batches()
            if batch is not None and done > batch:
                return False
            if done != last:
                last, changed = done, time.monotonic()
            if time.monotonic() - changed > STALLED:
                raise RuntimeError(f"no batch for {STALLED:.0f} s, {done} of them are done; see {self.folder}")
            time.sleep(POLL * 5)

    def note_failure(self, driver: ManagedProcess) -> None:
        """Record why the driver ended, from its last output."""
        words = CAUSE.findall(driver.stderr_path.read_text(errors="replace"))
        reason = (
            words[-1].rpartition("terminated with exception: ")[2] if words else f"status {driver.popen.returncode}"
        )
        self.failed[reason[:150]] += 1
        self.say(f"  {driver.stderr_path.parent.name} ended: {reason[:150]}")

    def strike(self, fault: Fault) -> None:
        """Run one round. If no process of the kind runs, wait for one, or for the end of the pipeline."""
        assert self.driver is not None
        self.census.look(self.roots)
        while not getattr(self, f"kill_{fault.kind}")():
            if self.driver.popen.poll() is not None:
                return
            time.sleep(POLL)
            self.census.look(self.roots)
        self.killed[fault.kind] += 1

    def kill_driver(self) -> bool:
        """Kill program and JVM. Processes that they started may continue for a moment, as in reality."""
        assert self.driver is not None
        signal_all([*of_kind("jvm", [self.driver.pid]), self.driver.pid])
        self.driver.popen.wait()
        self.driver = self.start_driver()
        return True

    def kill_freeze(self) -> bool:
        """Suspend the driver while its successor commits, then let it continue."""
        assert self.driver is not None
        self.thaw()
        self.frozen, stopped = self.driver, [self.driver.pid, *of_kind("jvm", [self.driver.pid])]
        stopped += of_kind("python", [self.driver.pid])
        before = self.batches()
        signal_all(stopped, signal.SIGSTOP)
        self.driver = self.start_driver()
        self.wait_for_batch(before + 1)
        signal_all(stopped, signal.SIGCONT)
        return True

    def thaw(self) -> None:
        """Let the zombie continue. There is at most one at a time."""
        if self.frozen is not None:
            self.census.look([self.frozen.pid])
            if self.frozen.popen.poll() is not None:
                self.note_failure(self.frozen)
            self.frozen.kill()
            self.frozen = None

    def kill_python(self) -> bool:
        """Kill one Python worker, which reads, writes, plans or commits."""
        return self.kill_one("python")

    def kill_executor(self) -> bool:
        """Kill one executor with its tasks."""
        return self.kill_one("executor")

    def kill_one(self, kind: str) -> bool:
        """Kill one process of a kind, if there is one."""
        found = of_kind(kind, self.roots)
        signal_all(self.rng.sample(sorted(found), min(1, len(found))))
        return bool(found)

    def kill_broker(self) -> bool:
        """Kill the broker, or one of several. It restarts at once."""
        self.server.kill()
        self.server.wait_ready()
        return True

    def check_nothing_open(self) -> None:
        """Check that, after settling, no transaction is open and every decided batch is present."""
        from oncelog.spark.writing.driver import look, settle
        from oncelog.spark.writing.options import sink_options

        self.thaw()
        given = {"kafka.bootstrap.servers": self.server.bootstrap, "topic": "out", "transactionalIdPrefix": "out-sink"}
        given |= self.pipeline_login()
        options = sink_options(given, streaming=True)
        settle(options)

        def nothing_open() -> bool:
            record, left, strays = look(options)
            return record.settled and not left and not strays

        wait_until(nothing_open, "nothing is open after settling")


def home(python: str) -> Path:
    """Return the folder of a Python's PySpark."""
    import subprocess

    program = "import pyspark, os; print(os.path.dirname(pyspark.__file__))"
    return Path(subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout.strip())
