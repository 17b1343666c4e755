"""The files in `deploy/` are those that the documentation shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs_blocks import ROOT, blocks

PAGE = ROOT / "docs" / "operations" / "service.md"


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").iterdir()), ids=lambda path: path.name)
def test_page_shows_the_file(path: Path) -> None:
    shown = {block.text: block.code for block in blocks(PAGE.name, PAGE.read_text()) if block.kind == "file"}
    assert shown[path.name].strip() == path.read_text().strip()
