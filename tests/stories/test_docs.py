"""Every command and snippet of the README and of the documentation, run on a broker of each page's own.

Pages with Spark are run by `tests/spark/test_docs.py`, those about Python clients by `tests/clients/test_docs.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs_blocks import blocks, name_of, pages
from support.docs_pages import run_page, uses_spark

ELSEWHERE = {"docs/python-client.md", "docs/from-aiokafka.md", "docs/from-confluent-kafka.md"}
PAGES = {name_of(page): blocks(name_of(page), page.read_text()) for page in pages()}


@pytest.mark.parametrize(
    "page", [page for page, found in PAGES.items() if found and page not in ELSEWHERE and not uses_spark(found)]
)
def test_blocks_of_a_page(page: str, tmp_path: Path) -> None:
    run_page(PAGES[page], tmp_path)
