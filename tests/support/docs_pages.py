"""Run the blocks of a page of the documentation in order, as a reader would, against a broker of the page's own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from oncelog.testing.registry import SchemaRegistryDouble
from support.docs_blocks import Block, same_output
from support.processes import ManagedProcess, wait_until
from support.servers import OncelogCluster

RUNNER = """
import json, signal, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    cell = json.loads(line)
    failure = ""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exec(compile(cell["code"], cell["name"], "exec"), names)
    except KeyboardInterrupt:
        failure = "interrupted"
    except BaseException:
        failure = traceback.format_exc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    print("\\n" + cell["end"] + json.dumps(failure), flush=True)
"""
"""Run blocks of Python in one process, with one namespace. It reads a line of JSON for each block."""

SPARK_DEFAULTS = """
spark.ui.enabled false
spark.sql.shuffle.partitions 2
spark.driver.memory 512m
spark.driver.host 127.0.0.1
"""
PLAIN_ADDRESS = "127.0.0.1:9092"
REGISTRY = "http://localhost:8081"
"""On a page, this address becomes that of a schema registry of the page's own."""
_ADDRESSES = re.compile(r"(?:localhost|127\.0\.0\.1):9092\b")


def uses_spark(blocks: list[Block]) -> bool:
    """Return whether a page needs Spark."""
    running = (block for block in blocks if block.kind not in ("not run", "output"))
    return any(re.search(r"\b(?:pyspark|oncelog\.spark)\b", block.code) for block in running)


def has_server(blocks: list[Block]) -> bool:
    """Return whether a page starts its brokers itself."""
    return any(block.kind == "server" for block in blocks)


class Output(NamedTuple):
    """What a block printed."""

    stdout: str
    stderr: str

    def __str__(self) -> str:
        return self.stdout + self.stderr


class PageRun:
    """A page in a folder of its own. Use it as a context manager: it stops what it has started."""

    def __init__(self, folder: Path, bootstrap: str = "", *, timeout: float = 120.0) -> None:
        """`timeout` is for each block, in seconds. `bootstrap` is a running broker for a page that starts none."""
        self.folder = folder / "page"
        self.folder.mkdir(parents=True)
        self._logs = folder / "logs"
        self._timeout = timeout
        self._bootstrap = bootstrap
        self._server: ManagedProcess | None = None
        self._python: PythonCells | None = None
        self._registry: str | None = None
        self._stack = contextlib.ExitStack()
        self._output = Output("", "")
        self._count = 0
        conf = folder / "conf"
        conf.mkdir()
        short_lived = Path(__file__).with_name("spark_conf") / "spark-defaults.conf"
        (conf / "spark-defaults.conf").write_text(short_lived.read_text() + SPARK_DEFAULTS)
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ONCELOG_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "100",
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def __enter__(self) -> PageRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._python is not None:
            self._python.close()
        self._stack.close()
        self._stop_server()

    def run(self, blocks: list[Block]) -> None:
        """Run all blocks. Raise AssertionError if a block does not behave as its marker says."""
        for block in blocks:
            self._count += 1
            self._kinds[block.kind](self, block)

    # -- kinds of blocks ----------------------------------------------------------------------------------------

    def _run(self, block: Block) -> None:
        failure = self._execute(block)
        assert not failure, f"{block} failed:\n{failure}\n{self._output}"

    def _hidden(self, block: Block) -> None:
        output = self._output
        self._run(block)
        self._output = output

    def _fails(self, block: Block) -> None:
        failure = self._execute(block)
        assert failure, f"{block} must fail\n{self._output}"
        raised = failure if block.language == "python" else ""
        self._must_print(block.text, str(self._output) + raised, block)

    def _until(self, block: Block) -> None:
        self._execute(block, until=self._here(block.text))
        self._must_print(block.text, str(self._output), block)

    def _must_print(self, text: str, found: str, block: Block) -> None:
        assert self._plain(text) in self._plain(found), f"{block}: no {text!r} in\n{found}"

    def _file(self, block: Block) -> None:
        path = self.folder / block.text
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.code))

    def _compare(self, block: Block) -> None:
        expected, found = self._plain(block.code), self._plain(str(self._output))
        same = same_output(expected, self._plain(self._output.stdout)) or same_output(expected, found)
        assert same, f"{block}: expected\n{expected}\n-- found\n{found}"

    def _start_server(self, block: Block) -> None:
        self._stop_server()
        code = re.sub(r"\boncelog up\b", "oncelog up --port 0", block.code)
        server = ManagedProcess(["sh", "-euc", f"cd '{self.folder}'\n{code}"], self._logs, f"{self._count}", self._env)
        self._server = server

        def addresses() -> str:
            return next((line.removeprefix("BROKERS=") for line in server.lines() if line.startswith("BROKERS=")), "")

        server.wait_for(addresses, f"the server of {block} is ready")
        self._bootstrap = addresses()
        self._output = Output("\n".join(server.lines()), server.stderr_path.read_text())

    def _skip(self, block: Block) -> None:
        """Do nothing: the block says why."""

    _kinds: dict[str, Callable[[PageRun, Block], None]] = {  # noqa: RUF012
        "run": _run,
        "setup": _hidden,
        "check": _hidden,
        "fails": _fails,
        "until": _until,
        "file": _file,
        "output": _compare,
        "server": _start_server,
        "not run": _skip,
    }

    # -- running ------------------------------------------------------------------------------------------------

    def _execute(self, block: Block, until: str = "") -> str:
        """Run a block and keep its output. Return how it failed, or an empty text."""
        code = self._here(block.code)
        env = {**self._env, "ONCELOG_BROKERS": self._bootstrap} if self._bootstrap else self._env
        if block.language == "python":
            if self._python is None:
                self._python = PythonCells(self.folder, self._logs, env)
            printed, failure = self._python.run(code, str(block), until, self._timeout)
            self._output = Output(printed, "")
            return failure
        self._output, failure = run_shell(code, self.folder, env, until, self._timeout)
        return failure

    def _stop_server(self) -> None:
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGTERM)
            self._server.stop()
            self._server = None

    def _here(self, text: str) -> str:
        """Replace the usual addresses of a broker and of a schema registry by those of this page's."""
        if REGISTRY in text:
            self._registry = self._registry or self._stack.enter_context(SchemaRegistryDouble()).url
            text = text.replace(REGISTRY, self._registry)
        return _ADDRESSES.sub(self._bootstrap, text) if self._bootstrap else text

    def _plain(self, text: str) -> str:
        """Replace the address of this page's broker by the usual one."""
        text = text.replace(self._bootstrap, PLAIN_ADDRESS) if self._bootstrap else text
        return _ADDRESSES.sub(PLAIN_ADDRESS, text)


class PythonCells:
    """A Python that runs blocks one after the other."""

    def __init__(self, folder: Path, logs: Path, env: dict[str, str]) -> None:
        logs.mkdir(exist_ok=True)
        self._out, self._err = logs / "python.out", logs / "python.err"
        self._count = 0
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", RUNNER],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    def run(self, code: str, name: str, until: str, timeout: float) -> tuple[str, str]:
        """Run a block. Return what it printed, and a traceback if it failed."""
        begin = self._out.stat().st_size
        self._count += 1
        end = f"end of block {self._count} "
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"code": code, "name": name, "end": end}) + "\n")
        self._process.stdin.flush()

        def printed() -> str:
            return self._out.read_bytes()[begin:].decode()

        def finished() -> bool:
            assert self._process.poll() is None, f"{name}: Python ended\n{self._err.read_text()[-4000:]}"
            return f"\n{end}" in printed()

        with _explained(lambda: f"{name}:\n{printed()}\n{self._err.read_text()[-4000:]}"):
            if until:
                wait_until(lambda: until in printed() or finished(), f"{name} prints {until!r}", timeout=timeout)
                os.kill(self._process.pid, signal.SIGINT)
            wait_until(finished, f"{name} ends", timeout=timeout)
        output, _, failure = printed().partition(f"\n{end}")
        return output, json.loads(failure)

    def close(self) -> None:
        """End the process and what it has started."""
        assert self._process.stdin is not None
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.stdin.close()
            self._process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run_shell(code: str, folder: Path, env: dict[str, str], until: str, timeout: float) -> tuple[Output, str]:
    """Run commands in a folder. Return what they printed, and how they failed."""
    logs = folder.parent / "logs"
    logs.mkdir(exist_ok=True)
    stdout, stderr = logs / "sh.out", logs / "sh.err"

    def printed() -> Output:
        return Output(stdout.read_text(), stderr.read_text())

    with stdout.open("wb") as out, stderr.open("wb") as err:
        process = subprocess.Popen(
            ["sh", "-euc", code],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        with _explained(lambda: str(printed())):
            if until:
                seen = f"the commands print {until!r}"
                wait_until(lambda: until in str(printed()) or process.poll() is not None, seen, timeout=timeout)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
            wait_until(lambda: process.poll() is not None, "the commands end", timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return printed(), f"exit status {process.returncode}" if process.returncode else ""


@contextlib.contextmanager
def _explained(output: Callable[[], str]) -> Iterator[None]:
    """Add the output to an AssertionError."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{output()}") from None


def run_page(blocks: list[Block], folder: Path, bootstrap: str = "", *, timeout: float = 120.0) -> None:
    """Run a page on a broker that runs, or on brokers of its own if it has none."""
    if bootstrap or has_server(blocks) or not any(block.kind != "not run" for block in blocks):
        with PageRun(folder, bootstrap, timeout=timeout) as page:
            page.run(blocks)
        return
    cluster = OncelogCluster(folder / "cluster")
    try:
        with PageRun(folder, cluster.bootstrap, timeout=timeout) as page:
            page.run(blocks)
    finally:
        cluster.stop()
