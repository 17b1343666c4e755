"""Keeps a broker process running: starts it, says when it is ready, starts it again when it dies, stops it."""

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
from collections.abc import Iterator
from types import FrameType

import msgspec

from oncelog.broker.config import BrokerConfig, load
from oncelog.broker.process import STOP_SIGNALS, Launch, Ready, StartError

STOP_TIMEOUT_S = 60.0
"""How long a broker may take to close its logs before it is killed."""
FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 5.0
"""Waits before a broker is started again double from the first to the longest..."""
HEALTHY_S = 10.0
"""...and begin anew after one that lived for so long."""


class Supervisor:
    """Runs one broker until it is told to stop."""

    def __init__(self, launch: Launch, *, restart: bool) -> None:
        self._launch = launch
        self._restart = restart
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._received = b""
        self._announced = False
        self._stopping = False
        self._delay = FIRST_DELAY_S
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Returns the exit status: 0 when stopped by a signal, 1 when the broker cannot be kept running."""
        config = load(self._launch.settings)
        with _reserved(config) as port, self._signals() as wakeup:
            self._launch = _with_port(self._launch, config, port)
            self._selector.register(wakeup, selectors.EVENT_READ)
            self._start()
            while True:
                status = self._step(wakeup)
                if status is not None:
                    return status

    def _step(self, wakeup: socket.socket) -> int | None:
        """Waits for one thing to happen and deals with it."""
        timeout = None if self._restart_at is None else max(0.0, self._restart_at - time.monotonic())
        for key, _ in self._selector.select(timeout):
            if key.fileobj is wakeup:
                numbers = wakeup.recv(64)
                self._stopping |= any(number in STOP_SIGNALS for number in numbers)
            else:
                self._hear()
        if self._stopping:
            return self._stop(wakeup)
        if self._process is not None and self._process.poll() is not None:
            return self._died(self._process.returncode)
        if self._restart_at is not None and time.monotonic() >= self._restart_at:
            self._restart_at = None
            self._start()
        return None

    # -- the broker -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        launch = msgspec.structs.replace(self._launch, supervisor_fd=theirs.fileno())
        command = [sys.executable, "-P", "-m", "oncelog.broker.process", msgspec.json.encode(launch).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        self._link, self._received = ours, b""
        self._selector.register(ours, selectors.EVENT_READ)
        self._started_at = time.monotonic()

    def _hear(self) -> None:
        """The broker has said that it is ready, or is gone."""
        assert self._link is not None
        with contextlib.suppress(ConnectionError):
            data = self._link.recv(65536)
            if data:
                self._received += data
                if data.endswith(b"\n") and not self._announced:
                    self._announced = True
                    ready = msgspec.json.decode(self._received, type=Ready)
                    # They are there; one that somebody deletes from now on must not come back with a restart.
                    self._launch = msgspec.structs.replace(self._launch, topics=())
                    print(f"BROKERS={ready.advertised}", flush=True)
                return
        self._forget_link()

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
            if status != 1:  # with 1 it has said why
                print(f"oncelog: the broker ended {what} before it was ready", file=sys.stderr, flush=True)
            return 1
        if not self._restart:
            print(f"oncelog: broker 1 ended {what}", file=sys.stderr, flush=True)
            return 1
        if not os.path.exists(self._launch.metadata):  # a new one would have nothing of what was acknowledged
            text = f"oncelog: broker 1 ended {what}, and {self._launch.metadata} is gone: it is not started again"
            print(text, file=sys.stderr, flush=True)
            return 1
        if time.monotonic() - self._started_at >= HEALTHY_S:
            self._delay = FIRST_DELAY_S
        text = f"oncelog: broker 1 ended {what}, starting it again in {self._delay:g} s"
        print(text, file=sys.stderr, flush=True)
        self._restart_at = time.monotonic() + self._delay
        self._delay = min(2 * self._delay, LONGEST_DELAY_S)
        return None

    def _stop(self, wakeup: socket.socket) -> int:
        """SIGTERM, and SIGKILL at a further SIGINT or when it takes too long.

        A second SIGTERM is nobody's impatience: `timeout` signals the process and then its group.
        """
        hurried = False
        if self._process is None:
            return 0
        self._process.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self._process.poll() is None:
            left = deadline - time.monotonic()
            if hurried or left <= 0:
                print("oncelog: killing the broker before it has closed its logs", file=sys.stderr, flush=True)
                self._process.kill()
                self._process.wait()
                return 1
            self._selector.select(min(left, 0.02) if self._link is None else left)
            with contextlib.suppress(BlockingIOError):
                hurried = signal.SIGINT in wakeup.recv(64)
            if self._link is not None:
                self._link.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    self._hear()
        status = self._process.returncode
        return 0 if status in (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP) else 1

    @contextlib.contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """A socket that gets the number of each signal that comes."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        former = {number: signal.signal(number, _ignore) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
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
    """The wake-up socket has the number; a handler has to exist for that."""


@contextlib.contextmanager
def _reserved(config: BrokerConfig) -> Iterator[int]:
    """The broker's port, bound here without listening: while the broker is away nobody else is given it.

    Linux lets a second socket listen on it; elsewhere the port is left alone and 0 stays 0.
    """
    if sys.platform != "linux":
        yield config.port
        return
    family, kind, protocol, _, address = _resolve(config)
    with socket.socket(family, kind, protocol) as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            keeper.bind(address)
        except OSError as error:
            where = f"{config.host or '0.0.0.0'}:{config.port}"
            if error.errno == errno.EADDRINUSE:
                hint = "choose another with --port, 0 takes a free one"
                raise StartError(f"port {config.port} of {where} is in use: {hint}") from error
            raise StartError(f"cannot listen on {where}: {error.strerror}") from error
        yield int(keeper.getsockname()[1])


def _resolve(config: BrokerConfig) -> tuple[int, int, int, str, tuple[object, ...]]:
    try:
        found = socket.getaddrinfo(config.host or "0.0.0.0", config.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise StartError(f"cannot listen on {config.host!r}: {error.strerror}") from error
    return found[0]


def _with_port(launch: Launch, config: BrokerConfig, port: int) -> Launch:
    """The same launch with the port that was chosen, so that a broker comes back where it was."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    settings = {**launch.settings, "listeners": f"PLAINTEXT://{host}:{port}"}
    return msgspec.structs.replace(launch, settings=settings)
