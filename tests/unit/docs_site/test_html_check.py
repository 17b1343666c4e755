"""The check of built pages finds broken links, broken anchors and what is loaded from the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs_site import build
from docs_site.html_check import findings


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ('<a href="b.html">', []),
        ('<a href="b.html#x"><a href="#y"><p id="y"><a href="#"><a href="https://kafka.apache.org/"><a href="b/">', []),
        ('<a href="c.html">', ["a.html refers to c.html: no such file"]),
        ('<a href="b.html#y">', ["a.html refers to b.html#y: no such anchor"]),
        ('<a href="#z">', ["a.html refers to #z: no such anchor"]),
        ('<img src="no.png">', ["a.html refers to no.png: no such file"]),
        ('<script src="https://unpkg.com/x">', ["a.html loads https://unpkg.com/x from the network"]),
        ('<link href="//fonts/x.css" rel="stylesheet">', ["a.html loads //fonts/x.css from the network"]),
        ('<img src="http://e/x.png">', ["a.html loads http://e/x.png from the network"]),
        ('<link href="https://oncelog.example/a.html" rel="canonical">', []),
    ],
)
def test_findings(tmp_path: Path, html: str, expected: list[str]) -> None:
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<p id="x">')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text("")
    assert list(findings(tmp_path)) == expected


def test_pages_of_a_nav() -> None:
    nav = [{"A": "a.md"}, "b.md", {"C": [{"D": "c/d.md"}, "c/e.md"]}]
    assert list(build.nav_pages(nav)) == ["a.md", "b.md", "c/d.md", "c/e.md"]


def test_written_page_must_not_hide_a_generated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    (tmp_path / "docs" / "reference" / "apis.md").write_text("# Mine")
    monkeypatch.setattr(build, "WRITTEN", tmp_path / "docs")
    monkeypatch.setattr(build, "PROJECT", tmp_path / "project")
    with pytest.raises(build.BuildError, match=r"docs/reference/apis\.md is generated"):
        build.collect()
