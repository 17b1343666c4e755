"""Kafka's own programs: VerifiableProducer, and VerifiableConsumer and TransactionalMessageCopier, which read it."""

from __future__ import annotations

from pathlib import Path

from stories.bounces.aim import GROUPS, TRANSACTIONS
from stories.bounces.reading import Reading, compare_reading
from stories.bounces.verdict import Found, History, Verdict, compare, compare_copy
from stories.bounces.writer import PATIENCE_S
from support.apache_kafka import SHORT_LIVED, java, properties
from support.processes import ManagedProcess, wait_until

TOOLS = "org.apache.kafka.tools"
HEAP = "96m"
COPY_S = 180.0
"""How long the last copier may take."""
SIGTERM_STATUS = 143


class JavaLoad:
    """One producer and one group member that run until the end, and copiers, one after the other.

    A copier ends when it has reached the end that its partitions had when it started. It aborts some transactions.
    """

    TOPICS = ("java-plain", "java-copy")
    COORDINATED = ((GROUPS, "java-reader"), (GROUPS, "java-copier"), (TRANSACTIONS, "java-copier"))

    def __init__(self, bootstrap: str, folder: Path, rate: float) -> None:
        self._bootstrap, self._folder = bootstrap, folder
        config = folder / "producer.properties"
        # VerifiableProducer does not retry by default. With small batches, it changes the partition often.
        retries = {"retries": "2147483647", "delivery.timeout.ms": str(PATIENCE_S * 1000), "batch.size": "2048"}
        config.write_text(properties(retries))
        arguments = ["--bootstrap-server", bootstrap, "--topic", "java-plain", "--acks", "-1", "--value-prefix", "1"]
        arguments += ["--throughput", f"{rate:.0f}", "--command-config", str(config)]
        command = java(f"{TOOLS}.VerifiableProducer", *arguments, heap=HEAP, options=SHORT_LIVED)
        self._producer = ManagedProcess(command, folder, "java-producer")
        arguments = ["--bootstrap-server", bootstrap, "--topic", "java-plain", "--group-id", "java-reader", "--verbose"]
        command = java(f"{TOOLS}.VerifiableConsumer", *arguments, heap=HEAP, options=SHORT_LIVED)
        self._reader = ManagedProcess(command, folder, "java-reader")
        self._copiers: list[ManagedProcess] = []
        self._failures: list[str] = []

    def wait_started(self) -> None:
        """Return when the producer has written a record."""
        self._producer.wait_for(
            lambda: "producer_send_success" in self._producer.stdout_path.read_text(), "the producer writes", timeout=60
        )
        self._reader.wait_for(lambda: self._reading().values, "VerifiableConsumer reads", timeout=60)
        self._start_copier()

    def _start_copier(self) -> None:
        arguments = ["--broker-list", self._bootstrap, "--input-topic", "java-plain", "--input-partition", "0"]
        arguments += ["--output-topic", "java-copy", "--consumer-group", "java-copier", "--transactional-id"]
        arguments += ["java-copier", "--transaction-size", "200", "--enable-random-aborts"]
        arguments += ["--group-mode", "--use-group-metadata"]
        command = java(f"{TOOLS}.TransactionalMessageCopier", *arguments, heap=HEAP, options=SHORT_LIVED)
        self._copiers.append(ManagedProcess(command, self._folder, f"java-copier-{len(self._copiers)}"))

    def look(self) -> None:
        """If the copier has ended, start another one."""
        status = self._copiers[-1].popen.poll()
        if status is not None:
            if status:
                self._failures.append(f"TransactionalMessageCopier ended with {status}: {self._copiers[-1].output()}")
            self._start_copier()

    def end(self) -> list[str]:
        """Stop the producer, and wait until a copier has reached the end. Return the failures."""
        status = self._producer.stop(timeout=PATIENCE_S + 30)
        if status != SIGTERM_STATUS:
            self._failures.append(f"VerifiableProducer ended with {status}: {self._producer.output()}")
        try:
            self._wait_copied()
            self.look()  # the next one starts after the end of the producer, so it copies the rest
            self._wait_copied()
        except AssertionError as error:
            self._failures.append(f"{error}: {self._copiers[-1].output()}")
        self._end_reader()
        return self._failures

    def _end_reader(self) -> None:
        ends = self._history().ends()
        try:
            wait_until(lambda: self._reading().reaches(ends), "VerifiableConsumer reads to the end", timeout=COPY_S)
        except AssertionError as error:
            self._failures.append(f"{error} {ends}: {self._reader.output()}")
        status = self._reader.stop(timeout=PATIENCE_S)
        if status != SIGTERM_STATUS:
            self._failures.append(f"VerifiableConsumer ended with {status}: {self._reader.output()}")

    def _history(self) -> History:
        return History.read(self._producer.lines())

    def _reading(self) -> Reading:
        return Reading.read(self._reader.lines())

    def _wait_copied(self) -> None:
        wait_until(lambda: self._copiers[-1].popen.poll() is not None, "the copier ends", timeout=COPY_S)

    def verdicts(self, found: dict[str, Found]) -> dict[str, Verdict]:
        """Compare what producer and group member have printed with the topic, and the topic with its copy."""
        history = self._history()
        return {
            "java-plain": compare(history, found["java-plain"]),
            "java-reader": compare_reading(history, found["java-plain"], self._reading()),
            "java-copy": compare_copy(found["java-plain"], found["java-copy"]),
        }

    def kill(self) -> None:
        """Kill all processes."""
        for process in (self._producer, self._reader, *self._copiers):
            process.kill()
