"""Keep a broker process running: start it, report when it is ready, restart it when it dies, stop it."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

import msgspec

from oncelog.broker.config.listeners import Listener, bracketed
from oncelog.broker.config.settings import BrokerConfig, load
from oncelog.broker.process import FAILED, NO_LOG_DIRECTORY, STOP_SIGNALS, Launch, Ready, StartError

STOP_TIMEOUT_S = 60.0
"""How long a broker may take to close its logs before it is killed."""
ONE_CTRL_C_S = 1.0
"""Further SIGINTs within this time belong to the first one."""
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 5.0
"""Delays before the restart of a broker that died early. They double from the first to the longest."""
EARLY_S = 2.0
"""A broker that dies within this time of its start has died early."""
HOLD = signal.SIGUSR1
"""Kill the broker, and keep it down until RESTART. Only `oncelog.testing` enables and sends both signals."""
RESTART = signal.SIGUSR2
"""Restart the broker without a delay: after HOLD, or after a clean stop if it is running."""
PARENT_POLL_S = 0.5
"""How often to check that the parent lives. A death signal (PR_SET_PDEATHSIG) would follow its thread instead."""


class Restarts:
    """Compute the delay before a restart of the broker."""

    def __init__(self) -> None:
        self._delay = FIRST_DELAY_S

    def wait_s(self, lived_s: float, *, was_ready: bool) -> float:
        """Return 0 if the broker was ready and did not die early, otherwise a delay that doubles each time."""
        if was_ready and lived_s >= EARLY_S:
            self._delay = FIRST_DELAY_S
            return 0.0
        delay = self._delay
        self._delay = min(2 * delay, LONGEST_DELAY_S)
        return delay


class Supervisor:
    """Run one broker until a signal, or the end of the parent process, stops it."""

    def __init__(self, launch: Launch, *, restart: bool, parent: int | None = None, faults: bool = False) -> None:
        """Create a supervisor. `parent`: stop the broker when this process ends. None: do not watch any process.

        `faults`: obey HOLD and RESTART. Otherwise these signals end the process, as they end any other program.
        """
        self._handled = (*STOP_SIGNALS, signal.SIGCHLD, *((HOLD, RESTART) if faults else ()))
        self._launch = launch
        self._restart = restart
        self._parent = parent
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._received = b""
        self._announced = False
        self._ready = False
        self._stopping = False
        self._held = False
        self._restart_wanted = False
        self._restarts = Restarts()
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Return the exit status: 0 after an orderly stop, 1 if the broker cannot be kept running."""
        config = load(self._launch.settings)
        with _reserved(config) as ports, self._signals() as wakeup:
            self._launch = _with_ports(self._launch, config, ports)
            self._selector.register(wakeup, selectors.EVENT_READ)
            self._start()
            while True:
                status = self._step(wakeup)
                if status is not None:
                    return status

    def _step(self, wakeup: socket.socket) -> int | None:
        """Wait for one event and handle it."""
        timeout = None if self._parent is None else PARENT_POLL_S
        if self._restart_at is not None:
            left = max(0.0, self._restart_at - time.monotonic())
            timeout = left if timeout is None else min(left, timeout)
        for key, _ in self._selector.select(timeout):
            if key.fileobj is wakeup:
                self._signalled(wakeup.recv(64))
            else:
                self._read_link()
        if self._parent is not None and os.getppid() != self._parent:
            _say("stopping, because the parent process has ended")
            self._stopping, self._parent = True, None
            if self._process is not None:
                self._process.send_signal(signal.SIGCONT)  # the parent may have paused the broker
        if self._stopping:
            return self._stop(wakeup)
        if self._process is not None and self._process.poll() is not None:
            return self._died(self._process.returncode)
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self._restart_at = None
            self._start()
        return None

    def _signalled(self, numbers: bytes) -> None:
        """React to signals, in the order in which they arrived. SIGCHLD only wakes up the loop."""
        for number in numbers:
            if number in STOP_SIGNALS:
                self._stopping = True
            elif number == HOLD:
                self._held, self._restart_wanted, self._restart_at = True, False, None
                if self._process is not None:
                    self._process.kill()
            elif number == RESTART:
                if self._process is None:
                    self._restart_at = time.monotonic()
                else:
                    self._restart_wanted = True
                    if not self._held:  # otherwise HOLD has killed it
                        self._process.terminate()
                self._held = False

    # -- the broker -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        launch = msgspec.structs.replace(self._launch, supervisor_fd=theirs.fileno())
        command = [sys.executable, "-P", "-m", "oncelog.broker.process", msgspec.json.encode(launch).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self._link, self._received, self._ready = ours, b"", False
        self._selector.register(ours, selectors.EVENT_READ)
        self._started_at = time.monotonic()

    def _read_link(self) -> None:
        """Read from the broker's socket: a line when the broker is ready, the end of the stream when it has ended."""
        assert self._link is not None
        with contextlib.suppress(ConnectionError):
            data = self._link.recv(65536)
            if data:
                self._received += data
                if data.endswith(b"\n"):
                    self._ready = True
                    self._announce()
                return
        self._forget_link()

    def _announce(self) -> None:
        """Print the broker's address when the first broker is ready."""
        if self._announced:
            return
        self._announced = True
        ready = msgspec.json.decode(self._received, type=Ready)
        # The topics exist now. A topic that a user deletes must not come back when the broker is restarted.
        self._launch = msgspec.structs.replace(self._launch, topics=())
        folder, logs = os.path.dirname(self._launch.metadata), self._launch.settings["log.dirs"]
        elsewhere = "" if logs.startswith(os.path.join(folder, "")) else f"; the logs are in {logs}"
        _say(f"the data is in {folder}{elsewhere}")
        print(f"BROKERS={ready.advertised}", flush=True)

    def _forget_link(self) -> None:
        if self._link is not None:
            self._selector.unregister(self._link)
            self._link.close()
            self._link = None

    def _died(self, status: int) -> int | None:
        self._process = None
        self._forget_link()
        what = f"by signal {-status}" if status < 0 else f"with status {status}"
        if not self._announced:
            if status not in (FAILED, NO_LOG_DIRECTORY):  # with these statuses, the broker has printed the reason
                _say(f"the broker ended {what} before it was ready")
            return 1
        if not self._restart:
            _say(f"broker 1 ended {what}")
            return 1
        if not os.path.exists(self._launch.metadata):  # with new metadata, the acknowledged records would be lost
            _say(f"broker 1 ended {what}. Not restarting it, because {self._launch.metadata} is missing.")
            return 1
        if self._held:
            _say(f"broker 1 ended {what}; not restarting it before SIGUSR2")
            return None
        wait_s = 0.0
        if not self._restart_wanted:
            wait_s = self._restarts.wait_s(time.monotonic() - self._started_at, was_ready=self._ready)
        self._restart_wanted = False
        when = f"in {wait_s:g} s" if wait_s else "now"
        text = f"broker 1 ended {what}; restarting {when}"
        if status == NO_LOG_DIRECTORY:
            text = (
                "broker 1 cannot use any of its log directories, and serves no clients until it can. "
                f"Retrying {when}; press Ctrl-C to stop."
            )
        _say(text)
        self._restart_at = time.monotonic() + wait_s
        return None

    def _stop(self, wakeup: socket.socket) -> int:
        """Send SIGTERM. Send SIGKILL after another SIGINT, or if the broker takes too long.

        Ignore a SIGINT within ONE_CTRL_C_S, and every SIGTERM: `timeout` signals the process, and then its group.
        """
        hurried = False
        if self._process is None:
            return 0
        self._process.terminate()
        begun = time.monotonic()
        deadline = begun + STOP_TIMEOUT_S
        while self._process.poll() is None:
            left = deadline - time.monotonic()
            if hurried or left <= 0:
                _say("killing the broker, although it has not closed its logs yet")
                self._process.kill()
                self._process.wait()
                return 1
            self._selector.select(min(left, 0.02) if self._link is None else left)
            with contextlib.suppress(BlockingIOError):
                hurried = signal.SIGINT in wakeup.recv(64) and time.monotonic() - begun > ONE_CTRL_C_S
            if self._link is not None:
                self._link.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    self._read_link()
        status = self._process.returncode
        if self._held and status == -signal.SIGKILL:
            return 0
        return 0 if status in (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP) else 1

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


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: the wake-up socket gets the number only if a handler exists."""


@contextlib.contextmanager
def _reserved(config: BrokerConfig) -> Iterator[list[int]]:
    """Bind the ports of the broker's listeners without listening. Other processes cannot get them during a restart.

    Linux lets a second socket listen on them. On other systems, nothing is bound, and port 0 stays 0.
    """
    with contextlib.ExitStack() as stack:
        yield [_bound_port(listener, stack) for listener in config.client_listeners]


def _bound_port(listener: Listener, stack: contextlib.ExitStack) -> int:
    """Bind the port of a listener until the stack is closed, and return it. Raises StartError."""
    if sys.platform != "linux":
        return listener.port
    family, kind, protocol, _, address = _resolve(listener)
    keeper = stack.enter_context(socket.socket(family, kind, protocol))
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        keeper.bind(address)
    except OSError as error:
        where = f"{listener.host or '0.0.0.0'}:{listener.port}"
        if error.errno == errno.EADDRINUSE:
            hint = "choose another with --port (0: any free port)"
            raise StartError(f"cannot listen on {where}, because the port is in use; {hint}") from error
        raise StartError(f"cannot listen on {where}: {error.strerror}") from error
    return int(keeper.getsockname()[1])


def _resolve(listener: Listener) -> tuple[int, int, int, str, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(listener.host or "0.0.0.0", listener.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise StartError(f"cannot listen on {listener.host!r}: {error.strerror}") from error
    return found[0]


def _with_ports(launch: Launch, config: BrokerConfig, ports: Sequence[int]) -> Launch:
    """Return the launch with these ports, so that a restarted broker has the same addresses."""
    addresses = (
        f"{listener.name}://{bracketed(listener.host)}:{port}"
        for listener, port in zip(config.client_listeners, ports, strict=True)
    )
    return msgspec.structs.replace(launch, settings={**launch.settings, "listeners": ",".join(addresses)})


def _say(text: str) -> None:
    """Print a line on stderr with one write: the broker writes its lines there, too."""
    sys.stderr.write(f"oncelog: {text}\n")
    sys.stderr.flush()
