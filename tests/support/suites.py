"""Fetch, build and run foreign clients and test suites. `support.suite_counts` compares the results with the pinned.

Everything is fetched into `.cache/` from the ordinary package registries. This repository contains none of it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

from support.apache_kafka import ROOT
from support.repo_rules import MADE

HERE = ROOT / "conformance"
CACHE = ROOT / ".cache" / "suites"
KAFKA_PYTHON = "3.0.12"

Outcomes = dict[str, str]
"""The name of each test -> "passed", "skipped" or "failed"."""


def command(
    *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 900
) -> str:
    """Run a command to its end, and return its stdout. Raise AssertionError with both outputs if it fails."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time build or fetch `name` in CACHE."""
    path = CACHE / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(folder: str, *build: str) -> Path:
    """Copy one of our programs into CACHE, build it there, and return that folder.

    If these sources are built already, do nothing: another test process may be running the program.
    """
    source, target = HERE / folder, CACHE / folder
    stamp = target / ".built"
    with locked(folder):
        digest = folder_digest(source, build)
        if not stamp.exists() or stamp.read_text() != digest:
            stamp.unlink(missing_ok=True)
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*MADE))
            command(*build, cwd=target)
            stamp.write_text(digest)
    return target


def folder_digest(source: Path, build: Sequence[str] = ()) -> str:
    """Return a digest of the build command and of all files that it may read."""
    files = (path for path in sorted(source.rglob("*")) if path.is_file())
    wanted = [path for path in files if not MADE & set(path.relative_to(source).parts)]
    parts = [*build, *(f"{path.relative_to(source)} {sha256(path.read_bytes()).hexdigest()}" for path in wanted)]
    return sha256("\n".join(parts).encode()).hexdigest()


def lines(text: str) -> Outcomes:
    """Return the outcomes that one of our programs printed: PASS NAME or FAIL NAME: REASON."""
    print(text)
    return {
        name: {"PASS": "passed", "FAIL": "failed"}[how]
        for how, name in re.findall(r"^(PASS|FAIL) ([\w-]+)", text, re.M)
    }


def go_program() -> Path:
    """Build our program on franz-go."""
    return built("go", "go", "build", "-o", "check", ".") / "check"


def franz_go(bootstrap: str, _only: Sequence[str] = ()) -> Outcomes:
    """Run all tests with Go: franz-go, with its admin client."""
    return lines(command(go_program(), bootstrap, f"go-{uuid.uuid4().hex[:8]}"))


def kafkajs(bootstrap: str, _only: Sequence[str] = ()) -> Outcomes:
    """Run all tests with JavaScript: kafkajs."""
    folder = built("js", "npm", "ci", "--no-audit", "--no-fund")
    return lines(command("node", "check.js", bootstrap, f"js-{uuid.uuid4().hex[:8]}", cwd=folder))


def rskafka(bootstrap: str, _only: Sequence[str] = ()) -> Outcomes:
    """Run all tests with Rust: rskafka."""
    folder = built("rust", "cargo", "build", "--quiet", "--locked")
    return lines(command(folder / "target/debug/oncelog-conformance", bootstrap, f"rust-{uuid.uuid4().hex[:8]}"))


EXTERNAL_SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass


class SpawnedService:
    def __init__(self, *_args):
        raise RuntimeError("this run is against a broker that runs already")
"""
"""Replaces the module that starts brokers: the tests import it, and the source distribution lacks it."""


def kafka_python_sources() -> Path:
    """Fetch kafka-python's source distribution once, and return the folder with it."""
    folder = CACHE / f"kafka_python-{KAFKA_PYTHON}"
    wanted = f"kafka-python=={KAFKA_PYTHON}"
    with locked("kafka-python"):
        if not (folder / "test" / "service.py").exists():
            command(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", CACHE, wanted)
            with tarfile.open(CACHE / f"kafka_python-{KAFKA_PYTHON}.tar.gz") as archive:
                archive.extractall(CACHE, filter="data")
            (folder / "test" / "__init__.py").touch()
            (folder / "test" / "service.py").write_text(EXTERNAL_SERVICE)
    return folder


def kafka_python(bootstrap: str, only: Sequence[str] = ()) -> Outcomes:
    """Run kafka-python's own integration tests, or those with the names `only`, from its source distribution.

    The tests of TLS start their own broker.
    """
    folder = kafka_python_sources()
    report = folder / f"report-{uuid.uuid4().hex}.xml"
    wanted = ["test/integration/{}.py::{}".format(*name.split(".", 1)) for name in only] or ["test/integration"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *wanted, "-q", "--timeout", "120", "-p", "no:cacheprovider",
         "--ignore", "test/integration/test_ssl_integration.py", "--show-capture", "no", "--junitxml", report],
        cwd=folder,
        env={**os.environ, "KAFKA_URI": f"kafka://{bootstrap}", "KAFKA_VERSION": "4.3.0", "KAFKA_ROOT": str(folder)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )  # fmt: skip
    assert report.exists(), f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return junit(report)


def junit(report: Path) -> Outcomes:
    """Read the outcomes of a JUnit report, and remove it."""
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        how = {frozenset(): "passed", frozenset({"skipped"}): "skipped"}.get(frozenset(kinds), "failed")
        name = f"{case.get('classname', '').removeprefix('test.integration.')}.{case.get('name')}"
        found[name] = how
        if how == "failed":
            print(name, next(iter(case)).get("message"))
    report.unlink()
    return found


SUITES: dict[str, Callable[[str, Sequence[str]], Outcomes]] = {
    "franz-go": franz_go,
    "kafkajs": kafkajs,
    "rskafka": rskafka,
    "kafka-python": kafka_python,
}
"""Runs a suite on the broker with this address. The second argument names the tests that the caller needs; if it is
empty, the caller needs all.
"""


def suite_digest(suite: str) -> str:
    """Return a digest of the suite: of our program's sources, or of kafka-python's version."""
    folders = {"franz-go": "go", "kafkajs": "js", "rskafka": "rust"}
    return folder_digest(HERE / folders[suite]) if suite in folders else KAFKA_PYTHON
