"""Keep broker processes running: start them, report when all are ready, restart those that die, stop them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import msgspec

from oncelog.broker.log_lines import STDERR
from oncelog.broker.process import (
    LAST_LINES_S,
    SHORT_JOIN_WAIT_S,
    STOP_SIGNALS,
    Launch,
    finish_output,
    say,
    stop_signals,
)
from oncelog.broker.service_manager import ServiceManager
from oncelog.cli.broker_process import BrokerProcess
from oncelog.cli.brokers_vitals import BrokersVitals
from oncelog.cli.changed_settings import ChangedSettings
from oncelog.cli.kept_ports import KeptPorts

STOP_TIMEOUT_S = 60.0
"""How long a broker may take to close its logs before it is killed."""
SLOW_STOP_S = 1.0
"""A broker that has not ended after this time is named, so that the user knows what the command waits for."""
KILL_TIMEOUT_S = 5.0
"""How long to wait for the end of killed brokers. A process that waits for a hanging disk does not end."""
ONE_CTRL_C_S = 1.0
"""Further SIGINTs within this time belong to the first one."""
SLOW_START_S = SHORT_JOIN_WAIT_S + 3.0
"""How long after the first broker of an existing cluster the others may be ready, before they are left out.

The first broker may have waited SHORT_JOIN_WAIT_S for them already.
"""
HOLD = signal.SIGUSR1
"""Kill the brokers, and keep them down until RESTART. Only `oncelog.testing` enables and sends both signals."""
RESTART = signal.SIGUSR2
"""Restart the brokers without a delay: after HOLD, or after a clean stop if they are running."""
PARENT_POLL_S = 0.5
"""How often to check that the parent lives. A death signal (PR_SET_PDEATHSIG) would follow its thread instead."""


class Supervisor:
    """Run brokers until a signal, or the end of the parent process, stops them."""

    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        restart: bool,
        changes: ChangedSettings | None = None,
        parent: int | None = None,
        faults: bool = False,
        ready_lines: Callable[[str], Sequence[str]] | None = None,
        manager: ServiceManager | None = None,
    ) -> None:
        """Create a supervisor. `parent`: stop the brokers when this process ends. None: do not watch any process.

        `changes`: a broker that starts again uses the changed settings.
        `faults`: obey HOLD and RESTART. Otherwise, print a line and ignore these signals. When the brokers are ready,
        print the lines that `ready_lines` returns for their addresses on stderr: the first one as a line of oncelog,
        and the others as they are. `manager`: tell it when the brokers are ready, and whether all of them are alive.
        """
        self._vitals = BrokersVitals(manager)
        self._handled = (*stop_signals(), signal.SIGCHLD, HOLD, RESTART)
        self._faults = faults
        self._changes = changes
        self._ready_lines = ready_lines
        self._ports = KeptPorts()
        self._started: set[str] = set()
        """The names of the brokers that were started at least once."""
        self._brokers = [
            BrokerProcess(self._vitals.reporting(launch), restart=restart, say=_say) for launch in launches
        ]
        self._parent = parent
        self._announced = False
        self._announce_at: float | None = None
        """The monotonic time from which slow brokers of an existing cluster are not waited for."""
        self._stopping = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Return the exit status: 0 after an orderly stop, 1 if a broker cannot be kept running."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._ports)
            for broker in self._brokers:
                broker.launch = self._ports.bind(broker.launch)
            wakeup = stack.enter_context(self._signals())
            stack.callback(finish_output)
            self._selector.register(wakeup, selectors.EVENT_READ)
            try:
                for broker in self._brokers:
                    self._start(broker)
                while True:
                    status = self._step(wakeup)
                    if status is not None:
                        return status
            except BaseException:
                self._stop(wakeup)
                raise

    def _step(self, wakeup: socket.socket) -> int | None:
        """Wait for one event and handle it."""
        for key, _ in self._selector.select(self._timeout()):
            if key.fileobj is wakeup:
                self._signalled(wakeup.recv(64))
            else:
                self._read_link(key.data)
        if self._parent is not None and os.getppid() != self._parent:
            _say("stopping, because the parent process has ended")
            self._stopping, self._parent = True, None
            for broker in self._brokers:
                if broker.process is not None:
                    broker.process.send_signal(signal.SIGCONT)  # the parent may have paused the broker
        if self._stopping:
            return self._stop(wakeup)
        for broker in self._brokers:
            if broker.process is not None and broker.process.poll() is not None:
                self._forget_link(broker)
                if not broker.died() or all(each.failed and each.ready is None for each in self._brokers):
                    self._stop(wakeup)
                    return 1
            elif broker.restart_at is not None and time.monotonic() >= broker.restart_at:
                self._start(broker)
        self._announce_if_due()
        if self._announced:
            self._vitals.tell(self._brokers, time.monotonic())
        return None

    def _timeout(self) -> float | None:
        """Return the seconds until the next restart, announcement or check of the parent, or None."""
        now = time.monotonic()
        times = [max(0.0, broker.restart_at - now) for broker in self._brokers if broker.restart_at is not None]
        if self._parent is not None:
            times.append(PARENT_POLL_S)
        if self._announce_at is not None and not self._announced:
            times.append(max(0.0, self._announce_at - now))
        if (beat_at := self._vitals.beat_at) is not None:
            times.append(max(0.0, beat_at - now))
        return min(times, default=None)

    def _signalled(self, numbers: bytes) -> None:
        """React to signals, in the order in which they arrived. SIGCHLD only wakes up the loop."""
        for number in numbers:
            if number in STOP_SIGNALS:
                self._stopping = True
            if number in (HOLD, RESTART) and not self._faults:
                _say(f"ignoring {signal.Signals(number).name}; to stop, send SIGTERM or press Ctrl-C")
                continue
            for broker in self._brokers:
                if number == HOLD:
                    broker.hold()
                elif number == RESTART:
                    broker.release()

    # -- the brokers ------------------------------------------------------------------------------------------------

    def _start(self, broker: BrokerProcess) -> None:
        if self._changes is not None and broker.name in self._started:
            number = int(broker.launch.settings["node.id"])
            settings = self._changes.next_settings(number, self._ports.bind, _say)
            if settings is not None:
                broker.launch = msgspec.structs.replace(broker.launch, settings=dict(settings))
        self._started.add(broker.name)
        broker.start()
        if broker.link is not None:
            self._selector.register(broker.link, selectors.EVENT_READ, broker)

    def _read_link(self, broker: BrokerProcess) -> None:
        if not broker.read_link():
            self._forget_link(broker)

    def _announce_if_due(self) -> None:
        """Print the addresses of the brokers when all of them are ready, except those that cannot start.

        If the cluster exists, do not wait long for the others after the first broker is ready.
        """
        waiting = [broker for broker in self._brokers if broker.ready is None]
        if self._announced or len(waiting) == len(self._brokers):
            return
        if self._announce_at is None and self._brokers[0].launch.cluster_exists:
            self._announce_at = time.monotonic() + SLOW_START_S
        is_late = self._announce_at is not None and time.monotonic() >= self._announce_at
        if not is_late and any(each.process is not None for each in waiting):
            return
        self._announced = True
        for broker in waiting:
            broker.run_without()
        first = self._brokers[0].launch
        folder, logs = os.path.dirname(first.metadata), first.settings["log.dirs"]
        elsewhere = "" if logs.startswith(os.path.join(folder, "")) else f"; the logs are in {logs}"
        _say(f"the data is in {folder}{elsewhere}")
        addresses = ",".join(broker.ready.advertised for broker in self._brokers if broker.ready is not None)
        for number, line in enumerate(self._ready_lines(addresses) if self._ready_lines is not None else ()):
            say(f"  {line}" if number else f"oncelog: {line}")
        STDERR.drain(LAST_LINES_S)  # before the line on stdout
        print(f"BROKERS={addresses}", flush=True)

    def _forget_link(self, broker: BrokerProcess) -> None:
        if broker.link is not None:
            self._selector.unregister(broker.link)
            broker.close_link()

    def _stop(self, wakeup: socket.socket) -> int:
        """Send SIGTERM. Send SIGKILL after another SIGINT, or if the brokers take too long. Return the exit status.

        Name the brokers that have not ended after SLOW_STOP_S. Ignore a SIGINT within ONE_CTRL_C_S, and every SIGTERM:
        `timeout` signals the process, and then its group.
        """
        hurried = False
        self._vitals.stopping()
        running = [broker for broker in self._brokers if broker.process is not None]
        for broker in running:
            broker.terminate()
        begun = time.monotonic()
        deadline = begun + STOP_TIMEOUT_S
        slow_at: float | None = begun + SLOW_STOP_S
        while left_over := [broker for broker in running if broker.process and broker.process.poll() is None]:
            left = deadline - time.monotonic()
            if hurried or left <= 0:
                _kill(left_over)
                return 1
            if slow_at is not None and time.monotonic() >= slow_at:
                slow_at = None
                _say(f"waiting for {_named(left_over)} to end, for {left:.0f} s at most; another Ctrl-C kills now")
            if slow_at is not None:
                left = max(0.0, slow_at - time.monotonic())
            linked = all(broker.link is not None for broker in left_over)
            self._selector.select(left if linked else min(left, 0.02))
            with contextlib.suppress(BlockingIOError):
                hurried = signal.SIGINT in wakeup.recv(64) and time.monotonic() - begun > ONE_CTRL_C_S
            for broker in left_over:
                if broker.link is not None and not broker.read_link():
                    self._forget_link(broker)
        return 0 if all(broker.ended_in_order() for broker in running) else 1

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Yield a socket that receives the number of each signal."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        former = {number: signal.signal(number, _ignore) for number in self._handled}
        signal.set_wakeup_fd(theirs.fileno())
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in former.items():
                signal.signal(number, handler)
            ours.close()
            theirs.close()


def _named(brokers: Sequence[BrokerProcess]) -> str:
    """Return the names of running brokers and their process ids."""
    return ", ".join(
        f"{broker.name} (process {broker.process.pid})" for broker in brokers if broker.process is not None
    )


def _kill(brokers: Sequence[BrokerProcess]) -> None:
    """Kill brokers, and wait for their end. Name those that do not end, for example because their disk hangs."""
    for broker in brokers:
        _say(f"killing {broker.name}, although it has not closed its logs yet")
        broker.kill()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    for broker in brokers:
        assert broker.process is not None
        try:
            broker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _say(f"{broker.name} (process {broker.process.pid}) does not end, although it was killed")


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up socket gets the number only if a handler exists."""


def _say(text: str) -> None:
    say(f"oncelog: {text}")
