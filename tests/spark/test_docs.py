"""Every command and snippet of the README and of the documentation's pages with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs_blocks import blocks, name_of, pages
from support.docs_pages import run_page, uses_spark

pytestmark = pytest.mark.timeout(900)

PAGES = {name_of(page): blocks(name_of(page), page.read_text()) for page in pages()}


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if uses_spark(found)])
def test_blocks_of_a_page(page: str, tmp_path: Path) -> None:
    run_page(PAGES[page], tmp_path, timeout=240)
