"""Compile and run the programs in `conformance/java`, with Kafka's Java client 2.0.0 and 4.3.1.

Version 2.0.0 comes from `$ONCELOG_OLD_JAVA_CLIENT`, otherwise from `.cache/kafka-clients-2.0.0` (`scripts/conformance`
fetches it).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.apache_kafka import ROOT, SHORT_LIVED, java, kafka_libs
from support.suites import built

SOURCES = ROOT / "conformance" / "java"

OLD, NEW = CLIENTS = ("2.0.0", "4.3.1")

REPLACED = {
    "consumer.poll(100)": "consumer.poll(java.time.Duration.ofMillis(100))",
    '(records), "group1"': '(records), new org.apache.kafka.clients.consumer.ConsumerGroupMetadata("group1")',
}
"""What the article calls, and what to call instead: version 4.0 removed these methods."""


def client_libs(version: str) -> Path:
    """Return the folder with the jars of a client. The FileNotFoundError says how to get them."""
    if version == NEW:
        return kafka_libs()
    folder = Path(os.environ.get("ONCELOG_OLD_JAVA_CLIENT") or ROOT / ".cache" / "kafka-clients-2.0.0")
    if not any(folder.glob("kafka-clients-*.jar")):
        raise FileNotFoundError(f"no Java client {version} in {folder}: scripts/conformance fetches it")
    return folder


def _program(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", name)) if home and Path(home, "bin", name).exists() else shutil.which(name) or name


def compile_sources(version: str, folder: Path, changes: Mapping[str, str] | None = None) -> list[str]:
    """Compile the sources with a client into `folder`, after these replacements. Return the lines with errors.

    Each replaced text must be in the sources exactly once.
    """
    folder.mkdir(parents=True)
    texts = {path.name: path.read_text() for path in SOURCES.glob("*.java")}
    for old, new in (changes or {}).items():
        (name,) = (name for name, text in texts.items() if text.count(old) == 1)
        texts[name] = texts[name].replace(old, new)
    for name, text in texts.items():
        (folder / name).write_text(text)
    quick = [f"-J{option}" for option in SHORT_LIVED]
    jar = client_libs(version) / f"kafka-clients-{version}.jar"
    command = [_program("javac"), *quick, "-nowarn", "-d", ".", "-cp", str(jar), *sorted(texts)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    errors = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert (done.returncode == 0) == (not errors), done.stderr
    return errors


def java_program(folder: str, main_class: str, *arguments: str) -> list[str]:
    """Compile a program of `conformance/java/FOLDER` with the newest client, and return the command that runs it."""
    jar = kafka_libs() / f"kafka-clients-{NEW}.jar"
    classes = built(f"java/{folder}", "javac", "-nowarn", "-d", ".", "-cp", str(jar), f"{main_class}.java")
    command = java(main_class, *arguments, options=SHORT_LIVED)
    command[command.index("-cp") + 1] += f"{os.pathsep}{classes}"
    return command


class JavaPrograms:
    """The programs, compiled with one client."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self._classes = folder / version
        assert compile_sources(version, self._classes, REPLACED if version == NEW else None) == []

    def run(self, program: str, *arguments: str) -> list[str]:
        """Run a program to its end, and return the lines that it printed. Raise AssertionError if it fails."""
        path = f"{client_libs(self.version)}/*{os.pathsep}{self._classes}"
        command = [_program("java"), "-Xmx128m", *SHORT_LIVED, "-cp", path, program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()
