"""Run `oncelog up` as a child process. A test can kill, restart and pause it, and it ends with the test run."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from oncelog.net.properties import parse_properties

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 90.0
"""`oncelog up` kills a broker that takes more than 60 s to close its logs."""
KEPT_LOG = 1 << 20
"""The bytes of the log that are kept after `stop`."""
POLL_S = 0.005
STARTED = re.compile(rb"^\[KafkaServer id=\d+\] started$", re.MULTILINE)
"""The broker's line on stderr when it accepts requests."""
FOLDERS = re.compile(rb"^oncelog: the data is in (.*?)(?:; the logs are in (.*?))?$", re.MULTILINE)


class BrokerStartError(Exception):
    """The broker did not start or restart. The message has the output of `oncelog up`."""


class Broker:
    """Run one broker for tests. Use it as a context manager, or call `start` and `stop`.

        with Broker({"auto.create.topics.enable": False}, topics=["orders:3"]) as broker:
            run_my_service(broker.bootstrap_servers)

    The broker listens on a free port of 127.0.0.1 and keeps its data in a temporary folder, which it deletes at the
    end. If this process is killed, the broker stops within about a second and deletes the folder too.

    `settings` are broker settings by Kafka's names. `topics` are created at the start, as NAME or NAME:PARTITIONS. With
    `secure`, the broker requires TLS and a login, and `client_options` has what clients need (this needs
    `pip install 'oncelog[secure]'`). With `data`, the broker keeps its data in that folder and does not delete it.
    `timeout` limits each start, in seconds.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        topics: Sequence[str] = (),
        secure: bool = False,
        data: str | os.PathLike[str] | None = None,
        port: int = 0,
        timeout: float = START_TIMEOUT_S,
    ) -> None:
        self.settings = {key: _text(value) for key, value in (settings or {}).items()}
        self._topics = tuple(topics)
        self._secure = secure
        self._data = data
        self._port = port
        self._timeout = timeout
        self._bootstrap = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._former_log = b""
        self._killed = False
        self._paused = False

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Broker at {self._bootstrap}>" if self.running else "<Broker, stopped>"

    # -- start and stop -------------------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Start the broker, and return it when it accepts requests. Raises BrokerStartError.

        After `stop`, it starts on the same port, but without the data of its temporary folder.
        """
        if self.running:
            return self
        self.stop()  # delete what an `oncelog up` that was killed has left
        self._former_log = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `_end` closes it
        self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            process_group=0,  # Ctrl-C interrupts the tests, which stop the broker after their own clean-up
        )
        self._killed = self._paused = False
        try:
            self._bootstrap = self._read_address(self._process)
            # The broker prints this line a moment later. `restart` must not mistake it for the line of the next start.
            self._wait(lambda: STARTED.search(self._log_bytes()), "the broker did not start")
        except BaseException:
            self._end(self._process)
            raise
        return self

    def _command(self) -> list[str]:
        command = [sys.executable, "-P", "-m", "oncelog", "up", "--fault-signals", "--parent-pid", str(os.getpid())]
        command += ["--ephemeral"] if self._data is None else ["--data", os.fspath(self._data)]
        single = "," not in self.settings.get("listeners", "") and "advertised.listeners" not in self.settings
        if self._bootstrap and single:
            command += ["--port", self._bootstrap.rpartition(":")[2]]
        elif "listeners" not in self.settings:
            command += ["--port", str(self._port)]
        if self._secure:
            command.append("--secure")
        for topic in self._topics:
            command += ["--topic", topic]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _read_address(self, process: subprocess.Popen[bytes]) -> str:
        """Return HOST:PORT of the line BROKERS=HOST:PORT."""
        assert process.stdout is not None
        deadline = time.monotonic() + self._timeout
        text = b""
        with process.stdout as stdout:
            while not text.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BrokerStartError(f"the broker did not start within {self._timeout:g} s\n{self.log()}")
                if select.select([stdout], [], [], left)[0]:
                    part = os.read(stdout.fileno(), 4096)
                    if not part:
                        status = process.wait()
                        raise BrokerStartError(f"`oncelog up` ended with status {status}\n{self.log()}")
                    text += part
        return text.decode().strip().removeprefix("BROKERS=")

    def stop(self) -> None:
        """Stop the broker and delete its temporary folder. Return when both are done. Do nothing if it is stopped."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            self.resume()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
        self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End `oncelog up` if it still runs. The broker stops with it."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.returncode < 0:
            self._clean_up()
        if self._errors is not None:
            self._former_log = self._log_bytes()[-KEPT_LOG:]
            self._errors.close()
        self._process, self._errors, self._killed, self._paused = None, None, False, False

    def _clean_up(self) -> None:
        """Do what an `oncelog up` that was killed could not: wait until its broker has ended, delete the folder."""
        pid, deadline = self._read_pid(), time.monotonic() + self._timeout
        while pid is not None and _exists(pid):
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        if self._data is None and (found := FOLDERS.search(self._log_bytes())) is not None:
            shutil.rmtree(os.fsdecode(found[1]), ignore_errors=True)

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the broker has been started and not stopped. It may be killed or paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address, such as "127.0.0.1:43127". It stays the same, also after `stop` and `start`."""
        if not self.running:
            raise RuntimeError("the broker is not running; call start(), or use `with Broker() as broker:`")
        return self._bootstrap

    @property
    def client_options(self) -> dict[str, str]:
        """The options with which a client connects, by Kafka's names: none, unless the broker is secure.

        The user may do everything. Pass the options to any client of oncelog: `Producer(address, options)`.
        """
        found = FOLDERS.search(self._log_bytes()) if self._secure and self.running else None
        if found is None:
            return {}
        return parse_properties(Path(os.fsdecode(found[1]), "secure", "client.properties").read_text(encoding="ascii"))

    @property
    def pid(self) -> int:
        """The process id of the broker. It changes with each restart. Raises RuntimeError after `kill`."""
        self._require("pid")
        if self._killed:
            raise RuntimeError("the broker has been killed; call restart() first")
        pid = self._read_pid()
        assert pid is not None
        return pid

    def _read_pid(self) -> int | None:
        """Return the process id that the broker has written, if it has."""
        found = FOLDERS.search(self._log_bytes())
        if found is None:
            return None
        data, logs = (os.fsdecode(part or b"") for part in found.groups())
        folder = logs.split(",")[0].strip() or os.path.join(data, "broker-1")
        try:
            return int(Path(folder, "broker.pid").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def log(self) -> str:
        """Return the log of the broker and of `oncelog up` since `start`. After `stop`, return only its end."""
        return self._log_bytes().decode(errors="replace")

    def _log_bytes(self, start: int = 0) -> bytes:
        if self._errors is None:
            return self._former_log[start:]
        fd = self._errors.fileno()
        return os.pread(fd, max(os.fstat(fd).st_size - start, 0), start)

    # -- faults ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the broker with SIGKILL, and keep it down until `restart`. Return when it is dead.

        The port stays reserved. Clients get "connection refused" and retry.
        """
        self._require("kill()")
        if self._killed:
            return
        pid = self.pid
        self._signal_supervisor(signal.SIGUSR1)
        self._killed, self._paused = True, False
        self._wait(lambda: not _exists(pid), "the broker did not end")

    def restart(self) -> None:
        """Start the broker again on the same port, with the same data. Return when it accepts requests.

        If the broker is running, stop it cleanly first. Raises BrokerStartError.
        """
        self._require("restart()")
        self.resume()
        before = len(self._log_bytes())
        self._signal_supervisor(signal.SIGUSR2)
        self._wait(lambda: STARTED.search(self._log_bytes(before)), "the broker did not start again")
        self._killed = False

    def pause(self) -> contextlib.AbstractContextManager[object]:
        """Suspend the broker with SIGSTOP until `resume`. Connections stay open, and requests get no response.

        As a context manager, `with broker.pause():` resumes it at the end of the block.
        """
        self._require("pause()")
        if not self._paused:
            os.kill(self.pid, signal.SIGSTOP)
            self._paused = True
        block = contextlib.ExitStack()
        block.callback(self.resume)
        return block

    def resume(self) -> None:
        """Continue a paused broker. Do nothing if it is not paused."""
        if self._paused:
            os.kill(self.pid, signal.SIGCONT)
            self._paused = False

    def recover(self) -> None:
        """Undo `kill`, `pause` and `stop`, and start a broker whose `oncelog up` has ended. Otherwise, do nothing."""
        if not self.running:
            self.start()
        self.resume()
        if self._killed:
            self.restart()

    def _require(self, call: str) -> None:
        if not self.running:
            raise RuntimeError(f"{call}: the broker is not running; call start() first\n{self.log()}".rstrip())

    def _signal_supervisor(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _wait(self, condition: Callable[[], object], failure: str) -> None:
        deadline = time.monotonic() + self._timeout
        while not condition():
            if not self.running:
                raise BrokerStartError(f"{failure}: `oncelog up` has ended\n{self.log()}")
            if time.monotonic() > deadline:
                raise BrokerStartError(f"{failure} within {self._timeout:g} s\n{self.log()}")
            time.sleep(POLL_S)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _text(value: object) -> str:
    """Return the value of a setting as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
