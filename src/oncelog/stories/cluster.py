"""Three brokers for stories in which one of them dies or hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from oncelog import Admin, errors
from oncelog.testing.broker import FOLDERS, Broker

BROKERS = 3
WAIT_S = 60.0
POLL_S = 0.01


class _Brokers(Broker):
    """`oncelog up --brokers 3 --ephemeral`, which also ends and deletes its data if this process is killed."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--brokers", str(BROKERS)]


class Cluster:
    """Three brokers, with their data in a temporary folder. One that is killed starts again."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._brokers = _Brokers(settings)
        self._paused: set[int] = set()

    def __enter__(self) -> Cluster:
        self._brokers.start()
        return self

    def __exit__(self, *_: object) -> None:
        for broker in tuple(self._paused):
            with suppress(OSError):  # it has died
                self.resume(broker)
        self._brokers.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers, in the order of their ids."""
        return self._brokers.bootstrap_servers

    def log(self) -> str:
        """Return what the brokers have logged."""
        return self._brokers.log()

    def kill(self, broker: int) -> None:
        """Kill a broker with SIGKILL."""
        self._signal(broker, signal.SIGKILL)

    def pause(self, broker: int) -> None:
        """Suspend a broker until `resume`: it answers nothing, and loses its session."""
        self._signal(broker, signal.SIGSTOP)
        self._paused.add(broker)

    def resume(self, broker: int) -> None:
        """Continue a paused broker."""
        self._signal(broker, signal.SIGCONT)
        self._paused.discard(broker)

    def _signal(self, broker: int, number: signal.Signals) -> None:
        found = FOLDERS.search(self.log().encode())
        assert found is not None
        os.kill(int(Path(os.fsdecode(found[1]), f"broker-{broker}", "broker.pid").read_text()), number)

    def address(self, broker: int) -> str:
        """Return the address of one broker."""
        return self.bootstrap_servers.split(",")[broker - 1]

    def leader_and_isr(self, topic: str) -> tuple[int, set[int]]:
        """Return the leader of partition 0 (-1: none) and the in-sync replicas, as a broker that runs sees them."""
        running = next(broker for broker in range(1, BROKERS + 1) if broker not in self._paused)
        with Admin(self.address(running)) as admin:
            try:
                (found,) = admin.describe_topics(topic)
            except errors.RetriableError:  # a partition without a leader has no offsets
                return -1, set()
        return found.partitions[0].leader, set(found.partitions[0].isr)

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition is true. Raises TimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not true after {WAIT_S:g} s")
            time.sleep(POLL_S)
