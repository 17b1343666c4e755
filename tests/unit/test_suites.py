"""Programs of the conformance tests are built once, although several test processes request them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support import suites


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(suites, "HERE", tmp_path)
    monkeypatch.setattr(suites, "CACHE", tmp_path / "cache")
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "main").write_text("first")
    return folder


def build(_: object = None) -> Path:
    return suites.built("program", "sh", "-c", "cat main >>log; echo >>log")


def test_concurrent_callers_share_one_build(source: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        (folder,) = set(pool.map(build, range(4)))
    assert (folder / "log").read_text().split() == ["first"]


def test_changed_sources_are_rebuilt(source: Path) -> None:
    build()
    (source / "main").write_text("second")
    build()
    assert (build() / "log").read_text().split() == ["first", "second"]


def test_failed_build_is_repeated(source: Path) -> None:
    for _ in range(2):
        with pytest.raises(AssertionError, match="no such thing"):
            suites.built("program", "sh", "-c", "echo no such thing >&2; exit 1")
