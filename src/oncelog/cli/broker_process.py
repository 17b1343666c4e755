"""One broker as a child process: start it, read its socket, and decide when it starts again after its death."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from oncelog.broker.process import FAILED, NO_LOG_DIRECTORY, STOP_SIGNALS, Launch, Ready
from oncelog.broker.service_manager import ALIVE_LINE, READY_LINE

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 5.0
"""Delays before the restart of a broker that died early. They double from the first to the longest."""
EARLY_S = 2.0
"""A broker that dies within this time of its start has died early."""


TOLD_ATTEMPTS = (1, 2, 4, 8)
EACH_ATTEMPTS = 12
"""After the first attempts, only each twelfth failed one is printed, once a minute: a disk may be full for days."""


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


def start_broker(launch: Launch, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process, with these options of `Popen`. Raises OSError.

    It reads its parameters from stdin, because all users can read the arguments of a process, and some are passwords.
    """
    command = [sys.executable, "-P", "-m", "oncelog.broker.process"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, **options)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as parameters:  # it has died already
        parameters.write(msgspec.json.encode(launch))
    process.stdin = None  # `communicate` would flush it
    return process


class BrokerProcess:
    """A broker that is started again when it dies, and the socket that it sends `Ready` to."""

    def __init__(self, launch: Launch, *, restart: bool, say: Callable[[str], None]) -> None:
        """Create a broker that is not started. `say` prints one line."""
        self.name = f"broker {launch.settings['node.id']}"
        self.launch = launch
        self.ready: Ready | None = None
        """The first message of the broker: it has accepted requests at least once."""
        self.failed = False
        """Whether a process of this broker has ended before it was ready. The supervisor restarts it."""
        self.healthy = False
        """Whether the running process has said that it is ready, as `/ready` says. Only if `launch.reports`."""
        self.alive = False
        """Whether a sign of life has arrived. The supervisor resets it."""
        self.link: socket.socket | None = None
        """The socket to the running process, or None. `read_link` must be called when it is readable."""
        self.restart_at: float | None = None
        """The monotonic time at which `start` must be called, or None."""
        self.process: subprocess.Popen[bytes] | None = None
        self._restart = restart
        self._say = say
        self._received = b""
        self._accepts = False
        self._late = False
        self._held = False
        self._restart_wanted = False
        self._restarts = Restarts()
        self._failures = 0
        """The processes in a row that could not serve clients."""
        self._started_at = 0.0

    def start(self) -> None:
        """Start a process. If the system cannot create one now, set `restart_at`, or raise OSError without restarts."""
        self.restart_at = None
        self._started_at = time.monotonic()
        try:
            self.process, self.link = self._spawn()
        except OSError as error:
            if not self._restart:
                raise
            self.failed = self.failed or self.ready is None
            wait_s = self._restarts.wait_s(0.0, was_ready=False)
            self.restart_at = self._started_at + wait_s
            self._say(f"cannot start {self.name}: {error.strerror}; retrying in {wait_s:g} s")
            return
        self._received, self._accepts = b"", False
        self.healthy = self.alive = False

    def _spawn(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Create a process. Return it, and the socket that it sends `Ready` to. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        launch = msgspec.structs.replace(self.launch, quiet=self._is_quiet(), supervisor_fd=theirs.fileno())
        with theirs:
            try:
                return start_broker(launch, pass_fds=[theirs.fileno()]), ours
            except OSError:
                ours.close()
                raise

    def _is_quiet(self) -> bool:
        """Return whether not to print why the present process fails, because the former ones have printed it."""
        attempt = self._failures + 1
        return attempt not in TOLD_ATTEMPTS and attempt % EACH_ATTEMPTS != 0

    def _tried(self) -> str:
        """Return how many processes in a row have failed, as a part of a line, if there were several."""
        return f" ({self._failures} attempts have failed)" if self._failures > 1 else ""

    def read_link(self) -> bool:
        """Read what the broker has sent. Return False if it has closed the socket, because the process has ended."""
        assert self.link is not None
        try:
            data = self.link.recv(65536)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._hear(line + b"\n")
        return bool(data)

    def _hear(self, line: bytes) -> None:
        """Take note of one line that the broker has sent: first `Ready`, then how it is."""
        if line in (READY_LINE, ALIVE_LINE):
            self.healthy = self.alive = True
            return
        self._accepts = True
        if self.ready is None:
            self.ready = msgspec.json.decode(line, type=Ready)
            self.join_alone()
            if self.failed or self._late:
                self._say(f"{self.name} is ready now, at {self.ready.advertised}")

    def join_alone(self) -> None:
        """Start the next process without topics, and without waiting for other brokers.

        A topic may have been deleted on purpose. Call this when the topics exist.
        """
        self.launch = msgspec.structs.replace(self.launch, topics=(), brokers=1)

    def run_without(self) -> None:
        """Let the other brokers run, although this one is not ready. If its process may hang, say so."""
        self.join_alone()
        if self.process is not None:
            self._late = True
            self._say(f"{self.name} is not ready yet; the other brokers run without it")

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.kill()

    def hold(self) -> None:
        """Kill the broker, and do not start it before `release`."""
        self._held, self._restart_wanted, self.restart_at = True, False, None
        self.kill()

    def release(self) -> None:
        """Start the broker without a delay: after `hold`, or after a clean stop if it is running."""
        if self.process is None:
            self.restart_at = time.monotonic()
        else:
            self._restart_wanted = True
            if not self._held:  # otherwise `hold` has killed it
                self.process.terminate()
        self._held = False

    def ended_in_order(self) -> bool:
        """Return whether the process has ended because of a signal to stop, or because of `hold`."""
        assert self.process is not None
        status = self.process.returncode
        if self._held and status == -signal.SIGKILL:
            return True
        return status in (0, *(-number for number in STOP_SIGNALS))

    def died(self) -> bool:
        """Print how the process ended, and set `restart_at`. Return False if the broker cannot be kept running."""
        assert self.process is not None
        status, self.process = self.process.returncode, None
        what = f"{self.name} ended " + (f"by signal {-status}" if status < 0 else f"with status {status}")
        if self.ready is None:
            reasoned = status in (FAILED, NO_LOG_DIRECTORY)  # the broker has printed the reason
            if self._restart and self.launch.cluster_exists:
                self._retry(what, reasoned)
                return True
            if not reasoned:
                self._say(f"{what} before it was ready")
            return False
        if not self._restart:
            self._say(what)
            return False
        if not os.path.exists(self.launch.metadata):  # with new metadata, the acknowledged records would be lost
            self._say(f"{what}. Not restarting it, because {self.launch.metadata} is missing.")
            return False
        if self._held:
            self._say(f"{what}; not restarting it before SIGUSR2")
            return True
        wait_s = 0.0
        is_usable = self._accepts and status != NO_LOG_DIRECTORY  # on a full disk, a broker starts and fails again
        if not self._restart_wanted:
            wait_s = self._restarts.wait_s(time.monotonic() - self._started_at, was_ready=is_usable)
        self._restart_wanted = False
        self.restart_at = time.monotonic() + wait_s
        quiet = self._is_quiet() and status in (FAILED, NO_LOG_DIRECTORY)
        self._failures = 0 if is_usable else self._failures + 1
        if quiet:
            return True
        when = (f"in {wait_s:g} s" if wait_s else "now") + self._tried()
        text = f"{what}; restarting {when}"
        if status == NO_LOG_DIRECTORY:
            text = (
                f"{self.name} cannot use any of its log directories, and serves no clients until it can. Free space "
                f"on the disk of {self.launch.settings['log.dirs']}, repair it, or put the directory back if it is "
                f"missing. Retrying {when}."
            )
        self._say(text)
        return True

    def _retry(self, what: str, reasoned: bool) -> None:
        """Start a broker of an existing cluster again, although it was never ready. The others have copies."""
        wait_s = self._restarts.wait_s(time.monotonic() - self._started_at, was_ready=False)
        self.restart_at = time.monotonic() + wait_s
        quiet = self._is_quiet() and reasoned
        self._failures += 1
        if quiet:
            return
        if self.failed:
            self._say(f"{what} before it was ready; restarting in {wait_s:g} s{self._tried()}")
            return
        self.failed = True
        folders = self.launch.settings["log.dirs"]
        self._say(
            f"{what} before it was ready, so its replicas in {folders} are not available. The other brokers run "
            f"without it. Restarting it in {wait_s:g} s."
        )
        if reasoned:
            advice = "Correct the cause that is printed above."
            if folders not in self.launch.settings.get("lost.log.dirs", "").split(","):
                advice += (
                    " If a disk is lost for good, stop this command, and run it once with --set "
                    f"lost.log.dirs={folders}"
                )
            self._say(advice)

    def close_link(self) -> None:
        """Close the socket of a process that has ended."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def terminate(self) -> None:
        """Stop the broker together with all others, and do not start it again."""
        self.restart_at = None
        if self.link is not None:
            with contextlib.suppress(OSError):  # the process has ended
                self.link.shutdown(socket.SHUT_WR)
        if self.process is not None:
            self.process.terminate()
