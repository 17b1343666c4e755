"""Run the long tests in turn, remember the next seeds, and report what was covered: the command of `scripts/nightly`.

Each part runs in steps of some minutes. A step is a command with one or more seeds. The parts take turns, so that a
short night also covers all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "nightly"
REPORT = ROOT / "benchmarks" / "nightly.md"
COMPILED = ".cache/wheel/bin/python"
STOPS = (signal.SIGINT, signal.SIGTERM)
STOPPING_S = 30
"""How long a step may take to end after SIGINT."""


class Part(NamedTuple):
    """A long test. Most take seeds, `size` of them in each step."""

    command: str
    """With {seed} if it takes one, and {count} if a step has several seeds."""
    size: int = 1
    minutes: float = 5
    """The expected duration of the first step."""


PARTS = {
    "worlds": Part("scripts/worlds {seed} {count} --keep-going", 500, 2),
    "cluster-worlds": Part("scripts/worlds --brokers 3 {seed} {count} --keep-going", 50, 3),
    "secured-worlds": Part("scripts/worlds --secured {seed} {count} --keep-going", 50, 5),
    "compiled-worlds": Part(f"{COMPILED} -m support.worlds {{seed}} {{count}} --keep-going", 200, 2),
    "compiled-cluster-worlds": Part(f"{COMPILED} -m support.worlds --brokers 3 {{seed}} {{count}} --keep-going", 25, 3),
    "many-partitions": Part(".venv/bin/python -m support.many_partitions --seed {seed}", 1, 10),
    "compiled-many-partitions": Part(f"{COMPILED} -m support.many_partitions --seed {{seed}}", 1, 10),
    "fuzz": Part("scripts/fuzz --inputs 1000000 --seed {seed}", 1, 5),
    "fuzz-sockets": Part("scripts/fuzz sockets --inputs 50000 --seed {seed}", 1, 3),
    "bounce": Part("scripts/bounce --seconds 60 --seed {seed}", 1, 3),
    "bounce-secured": Part("scripts/bounce --secured --seconds 60 --seed {seed}", 1, 3),
    "chaos": Part("scripts/chaos --brokers 3 --rounds 10 --records 200000 --seed {seed}", 1, 10),
    "chaos-secured": Part("scripts/chaos --secured --rounds 10 --records 200000 --seed {seed}", 1, 10),
    "kafka-tests": Part(
        "env ONCELOG_KAFKA_TESTS_OF=all scripts/conformance conformance/test_kafka_consumer_tests.py", 1, 15
    ),
    "demo": Part("scripts/demo --seed {seed}", 1, 5),
    "soak": Part("scripts/soak --minutes 30 --seed {seed}", 1, 40),
    "pure-tests": Part("scripts/test", 1, 45),
    "deep-explorer": Part("env ONCELOG_EXPLORE=deep scripts/test tests/spark/test_explorer.py", 1, 30),
}


class Failure(NamedTuple):
    """A step that failed."""

    command: str
    log: str
    last: str


class Covered:
    """What a part has done in this run."""

    def __init__(self, first: int) -> None:
        self.first = self.next = first
        self.steps = 0
        self.seconds = 0.0
        self.last = ""
        """The last line that the last step has printed."""


class State:
    """The next seed of each part, and how long its last step took, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, dict[str, float]] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            self._found = json.loads(file.read_text())

    def next_seed(self, name: str) -> int:
        """Return the first seed that has not run."""
        return int(self._found.get(name, {}).get("next", 0))

    def expected_s(self, name: str, part: Part) -> float:
        """Return how long a step of the part will take."""
        return float(self._found.get(name, {}).get("seconds", 60 * part.minutes))

    def ran(self, name: str, next_seed: int, seconds: float) -> None:
        """Remember a step that has ended."""
        self._found[name] = {"next": next_seed, "seconds": round(seconds, 1)}
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(self._found, indent=1))
        written.replace(self._file)


class Night:
    """One run. `covered` and `failures` are complete after each step."""

    def __init__(self, parts: dict[str, Part], folder: Path, minutes: float | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.parts = parts
        git = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        self.commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        self.folder = folder
        self.state = State(folder / "state.json")
        self.covered = {name: Covered(self.state.next_seed(name)) for name in parts}
        self.failures: list[Failure] = []
        self.skipped: dict[str, str] = {}
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def build(self) -> None:
        """Build the compiled wheel if a part needs it and the sources have changed. Skip these parts if this fails."""
        compiled = [name for name, part in self.parts.items() if part.command.startswith(COMPILED)]
        if not compiled or _is_current(ROOT / COMPILED):
            return
        print("building the compiled wheel: scripts/package", flush=True)
        log = self.folder / "package.log"
        if run_command(["scripts/package"], log, self.deadline):
            self.skipped |= dict.fromkeys(compiled, f"scripts/package failed, see {os.path.relpath(log, ROOT)}")

    def run(self) -> None:
        """Run the parts in turn until no step fits into the time. Without a deadline, never end."""
        while True:
            steps = [name for name in self.parts if self._fits(name)]
            if not steps:
                return
            for name in steps:
                if self._fits(name):
                    self._step(name)

    def _fits(self, name: str) -> bool:
        if name in self.skipped:
            return False
        return self.deadline is None or time.monotonic() + self.state.expected_s(name, self.parts[name]) < self.deadline

    def _step(self, name: str) -> None:
        part, done = self.parts[name], self.covered[name]
        command = part.command.format(seed=done.next, count=part.size)
        log = self.folder / f"{name}.log"
        print(f"{datetime.now(UTC):%H:%M:%S} {command}", flush=True)
        began = time.monotonic()
        status = run_command(command.split(), log, self.deadline)
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        done.last = lines[-1].strip() if lines else ""
        done.steps += 1
        done.next += part.size
        done.seconds += time.monotonic() - began
        self.state.ran(name, done.next, time.monotonic() - began)
        if status:
            kept = log.rename(log.with_name(f"{name}-{done.next - part.size}.log"))
            self.failures.append(Failure(command, os.path.relpath(kept, ROOT), done.last))
            print(f"FAILED with status {status}: {command}; see {kept}", flush=True)


def run_command(command: list[str], log: Path, deadline: float | None) -> int:
    """Run a command in a process group of its own, and return its status.

    End it if this process is interrupted, or at the deadline. In that case, raise TimeoutExpired.
    """
    environment = {**os.environ, "PYTHONPATH": "tests"}
    child = None
    with log.open("wb") as output:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until the child is known, or nothing would end it
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_unblock,
            )
            _unblock()
            return child.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        finally:
            _unblock()
            if child is not None:
                _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that is left of its group."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOPPING_S)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _is_current(python: Path) -> bool:
    """Return whether the compiled wheel was installed after the last change of the sources."""
    installed = python.parents[1] / "pyvenv.cfg"
    changed = max(file.stat().st_mtime for file in (ROOT / "src").rglob("*.py"))
    return python.exists() and installed.stat().st_mtime > changed


def report_of(night: Night, began: datetime, ended: str) -> str:
    """Return the report in Markdown."""
    where = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    minutes = (datetime.now(UTC) - began).total_seconds() / 60
    lines = [
        "# The last run of scripts/nightly",
        "",
        f"Commit {night.commit}, {began:%Y-%m-%d %H:%M} UTC, {minutes:.0f} minutes, {where}. The run {ended}.",
        "",
        "| Part | Seeds | Steps | Minutes | Last line of its output |",
        "|---|---|---|---|---|",
    ]
    for name, done in night.covered.items():
        seeds = f"{done.first} to {done.next - 1}" if done.steps else "none"
        last = (
            done.last.replace("|", "/").partition(", {")[0][:160] if done.steps else night.skipped.get(name, "no time")
        )
        lines.append(f"| {name} | {seeds} | {done.steps} | {done.seconds / 60:.1f} | {last} |")
    lines += ["", f"Failed steps: {len(night.failures) or 'none'}.", ""]
    for failure in night.failures:
        lines += [f"- `{failure.command}`: {failure.last[:300]} (`{failure.log}`)"]
    return "\n".join(lines).rstrip() + "\n"


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do the same as Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def main(arguments: list[str] | None = None) -> int:
    """Run the command. Return its exit status."""
    parser = argparse.ArgumentParser(prog="scripts/nightly", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="run only these parts (default: all)")
    parser.add_argument(
        "--minutes",
        type=float,
        help="start no step that would end after this time (default: run until Ctrl-C)",
    )
    parser.add_argument("--list", action="store_true", help="print the parts with their next seed, and run nothing")
    parser.add_argument("--report", type=Path, default=REPORT, help="where to write the report (benchmarks/nightly.md)")
    parser.add_argument("--state", type=Path, default=FOLDER, help="directory of seeds and logs (.cache/nightly)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    night = Night({name: PARTS[name] for name in options.parts or PARTS}, options.state, options.minutes)
    if options.list:
        for name, part in night.parts.items():
            print(f"{name:26} next seed {night.state.next_seed(name):7}  {part.command}")
        return 0
    began, ended = datetime.now(UTC), "was interrupted"
    try:
        with interrupted_by_sigterm():
            night.build()
            night.run()
        ended = "ended when no further step fitted into its time"
    except subprocess.TimeoutExpired:
        ended = "ended at its time limit, within a step that will be repeated"
    except KeyboardInterrupt:
        pass
    text = report_of(night, began, ended)
    options.report.write_text(text)
    print(text, end="")
    return 1 if night.failures else 0 if ended != "was interrupted" else 130


if __name__ == "__main__":
    sys.exit(main())
