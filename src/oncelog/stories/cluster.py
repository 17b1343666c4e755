"""Three brokers for stories in which one of them dies or hangs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from oncelog import Admin, errors

BROKERS = 3
WAIT_S = 60.0
POLL_S = 0.01


class Cluster:
    """`oncelog up --brokers 3`, with its data in a temporary folder. A broker that is killed starts again."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="oncelog-story-"))
        self._process: subprocess.Popen[str] | None = None
        self._paused: set[int] = set()
        self.bootstrap_servers = ""

    def __enter__(self) -> Cluster:
        command = [sys.executable, "-P", "-m", "oncelog", "up", "--brokers", str(BROKERS), "--port", "0"]
        command += ["--data", str(self._folder / "data"), "--parent-pid", str(os.getpid())]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("BROKERS="):
            text = self.log()
            self.__exit__(None, None, None)
            raise RuntimeError(f"the brokers did not start:\n{text}")
        self.bootstrap_servers = line.strip().removeprefix("BROKERS=")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for broker in tuple(self._paused):
            self.resume(broker)
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

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
        os.kill(int((self._folder / "data" / f"broker-{broker}" / "broker.pid").read_text()), number)

    def log(self) -> str:
        """Return what the brokers have logged."""
        return (self._folder / "log").read_text(errors="replace")

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
