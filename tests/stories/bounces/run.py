"""One run: brokers, writers, faults, and the comparison at the end."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from oncelog import Admin, errors
from oncelog.client.admin.acls import AclBinding
from stories.bounces import writer
from stories.bounces.aim import ANY, TARGETS, TRANSACTIONS, Aim
from stories.bounces.java import JavaLoad
from stories.bounces.verdict import Found, History, Verdict, compare, compare_replicas
from support.processes import ManagedProcess, children, wait_until
from support.secured_cluster import ADMINISTRATOR, WRITER, SecuredCluster, our_options
from support.servers import ReplicatedCluster

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
"""The faults. `stop` suspends a broker, `term` restarts it after a clean stop."""
CLIENTS = ("confluent", "oncelog", "java")
KINDS = ("plain", "transactions")
RECOVERED_S = 90.0
"""How long the brokers may take after the last fault. The timeout of a transaction is 60 s."""
END_S = 2 * writer.PATIENCE_S + 30.0
"""How long a writer may take to end after SIGTERM."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a run."""

    seed: int
    clients: tuple[str, ...] = CLIENTS[:2]
    faults: tuple[str, ...] = tuple(SIGNALS)
    targets: tuple[str, ...] = TARGETS
    """The role of the broker that a fault hits."""
    brokers: int = 3
    seconds: float = 60
    pause_s: tuple[float, float] = (0.5, 4)
    """The least and the longest time between two faults."""
    suspended_s: tuple[float, float] = (1, 20)
    """The least and the longest time for which a broker is suspended. Its session ends after 9 s."""
    rate: float = 400
    """Records per second of each writer."""
    secured: bool = False
    """Whether all connections have TLS and a login, also those between brokers, and clients need permissions."""


@dataclass
class Run:
    """The running processes. Use it as a context manager."""

    plan: Plan
    folder: Path
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)
    """The number of faults by kind."""
    hit: Counter[str] = field(default_factory=Counter)
    """The number of faults by target."""
    problems: list[str] = field(default_factory=list)
    """Failures of writers or brokers, apart from wrong records."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.plan.seed)
        self._suspended: tuple[int, float] | None = None
        self._writers: dict[str, ManagedProcess] = {}
        self._java: JavaLoad | None = None
        self._login: dict[str, str] = {}
        """Options of the clients, by librdkafka's names."""

    def __enter__(self) -> Run:
        folder, brokers = self.folder / "server", self.plan.brokers
        if not self.plan.secured:
            self.server = ReplicatedCluster(folder, brokers=brokers)
            return self
        secured = SecuredCluster(folder, brokers=brokers)
        self.server, self._login = secured, secured.options(ADMINISTRATOR)
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._writers.values():
            process.kill()
        if self._java is not None:
            self._java.kill()
        self._resume()
        self.server.process.kill()

    def go(self) -> dict[str, Verdict]:
        """Start the writers, run the faults, and return the verdict for each topic."""
        self._start_writers()
        self._run_faults()
        self._end_writers()
        self._wait_until_recovered()
        found = {topic: read(self.server.bootstrap, topic, self._login) for topic in self._topics}
        verdicts = {
            topic: compare(History.read(process.stdout_path.read_text().splitlines()), found[topic])
            for topic, process in self._writers.items()
        }
        if self._java is not None:
            verdicts |= self._java.verdicts(found)
        status = self.server.stop()
        if status:
            self.problems.append(f"`oncelog up` ended with {status}")
        for topic in self._topics:
            self._compare_replicas(topic)
        return verdicts

    # -- writers --------------------------------------------------------------------------------------------------

    def _start_writers(self) -> None:
        plan = self.plan
        python = [client for client in plan.clients if client != "java"]
        named = {f"{client}-{kind}": (client, kind) for client in python for kind in KINDS}
        self._topics = [*named, *(JavaLoad.TOPICS if "java" in plan.clients else ())]
        with Admin(self.server.bootstrap, **our_options(self._login)) as admin:
            admin.create_topics(self._topics, writer.PARTITIONS)
        login = self._allow_writers()
        program = [sys.executable, "-u", "-m", "stories.bounces.writer"]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        for topic, words in named.items():
            arguments = [*words, self.server.bootstrap, topic, topic, str(plan.rate), str(plan.seed), str(login)]
            self._writers[topic] = ManagedProcess([*program, *arguments], self.folder, topic, env)
        if "java" in plan.clients:
            self._java = JavaLoad(self.server.bootstrap, self.folder, plan.rate)
        for topic, process in self._writers.items():
            process.wait_for(lambda process=process: any(process.lines()), f"{topic} has written a record")
        if self._java is not None:
            self._java.wait_started()

    def _allow_writers(self) -> Path:
        """Return the file with the writers' login. On secured brokers, it is a user who may only write these topics."""
        login = self._login
        if isinstance(self.server, SecuredCluster):
            login = self.server.options(WRITER)
            acls = [
                AclBinding(kind, name, f"User:{WRITER}", "write")
                for name in self._topics
                for kind in ("topic", "transactional_id")
            ]
            with Admin(self.server.bootstrap, **our_options(self._login)) as admin:
                admin.create_acls(acls)
        file = self.folder / "login.json"
        file.touch(0o600)
        file.write_text(json.dumps(login))
        return file

    def _end_writers(self) -> None:
        for process in self._writers.values():
            process.popen.terminate()
        for topic, process in self._writers.items():
            # A second SIGTERM would kill a writer that is about to exit.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(END_S)
            process.kill()
            if status := process.popen.returncode:
                self.problems.append(f"{topic} ended with {status}: {process.stderr_path.read_text()[-2000:]}")
        if self._java is not None:
            self.problems += self._java.end()

    # -- faults ---------------------------------------------------------------------------------------------------

    def _run_faults(self) -> None:
        aim = Aim(self.server.bootstrap, self._topics, self._coordinated(), self._login)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < self.plan.seconds:
            fault, target = self._chance.choice(self.plan.faults), self._chance.choice(self.plan.targets)
            broker = self._chance.randrange(1, self.plan.brokers + 1)
            if target != ANY:
                found = aim.find(target, self._chance)
                broker, target = (broker, ANY) if found is None else (found, target)
            if self._strike(fault, broker):
                self.say(f"{passed:5.1f} s: {fault} broker {broker} ({target})")
                self.done[fault] += 1
                self.hit[target] += 1
            until = time.monotonic() + self._chance.uniform(*self.plan.pause_s)
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))
                if self._suspended is not None and time.monotonic() > self._suspended[1]:
                    self._resume()
            if self._java is not None:
                self._java.look()
        self._resume()

    def _coordinated(self) -> list[tuple[str, str]]:
        """Return the groups and transactional ids of the clients, each with the topic of its coordinator."""
        found = [(TRANSACTIONS, name) for name in self._writers if name.endswith(KINDS[1])]
        return [*found, *(JavaLoad.COORDINATED if self._java is not None else ())]

    def _strike(self, fault: str, broker: int) -> bool:
        """Send a signal to a broker. Return False if it does not run, or if another one is suspended already."""
        pid = self._running(broker)
        if pid is None or (fault == "stop" and self._suspended is not None):
            return False
        os.kill(pid, SIGNALS[fault])
        if fault == "stop":
            self._suspended = (pid, time.monotonic() + self._chance.uniform(*self.plan.suspended_s))
        return True

    def _running(self, broker: int) -> int | None:
        try:
            pid = self.server.broker_pid(broker)
        except (FileNotFoundError, ValueError):
            return None  # it is starting
        return pid if pid in children(self.server.process.pid) else None

    def _resume(self) -> None:
        """Continue the suspended broker."""
        if self._suspended is not None and self._suspended[0] in children(self.server.process.pid):
            os.kill(self._suspended[0], signal.SIGCONT)
        self._suspended = None

    # -- the end --------------------------------------------------------------------------------------------------

    def _wait_until_recovered(self) -> None:
        """Wait until all replicas are in sync, and no transaction is open."""
        lagging: list[str] = []

        def recovered() -> bool:
            nonlocal lagging
            try:
                with Admin(self.server.bootstrap, **our_options(self._login)) as admin:
                    topics = admin.describe_topics(self._topics)
            except errors.KafkaError as error:
                lagging = [str(error)]
                return False
            lagging = [
                f"{topic.name}-{each}"
                for topic in topics
                for each in topic.partitions
                if each.leader < 0
                or set(each.isr) != set(each.replicas)
                or each.last_stable_offset != each.log_end_offset
            ]
            return not lagging

        try:
            wait_until(recovered, "all replicas are in sync, and no transaction is open", timeout=RECOVERED_S)
        except AssertionError as error:
            self.problems.append(f"{error}: {lagging}")

    def _compare_replicas(self, topic: str) -> None:
        """Compare the files of all replicas. They are never deleted or compacted in this run."""
        for partition in range(writer.PARTITIONS):
            logs = []
            for broker in range(1, self.plan.brokers + 1):
                folder = next((self.server.data / f"broker-{broker}").glob(f"{topic}-{partition}"), None)
                if folder is not None:
                    logs.append((f"broker {broker}", b"".join(p.read_bytes() for p in sorted(folder.glob("*.log")))))
            self.problems += compare_replicas(f"{topic}-{partition}", logs)


def read(bootstrap: str, topic: str, login: Mapping[str, str]) -> Found:
    """Read a topic to its end with read_committed, with librdkafka."""
    options = {"group.id": "reader", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **login, "enable.partition.eof": True, **options})
    found: Found = {partition: [] for partition in range(writer.PARTITIONS)}
    left = set(found)
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found])
        deadline = time.monotonic() + RECOVERED_S
        while left:
            messages = consumer.consume(10_000, timeout=1)
            for message in messages:
                if message.error() is None:
                    found[message.partition()].append((message.offset(), message.value().decode()))
                elif message.error().name() == "_PARTITION_EOF":
                    left.discard(message.partition())
            if messages:
                deadline = time.monotonic() + RECOVERED_S
            assert time.monotonic() < deadline, f"{topic}: partitions {left} have no end"
    finally:
        consumer.close()
    return found
