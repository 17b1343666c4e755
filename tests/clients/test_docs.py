"""Every snippet of the pages about Python clients, on either server."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.docs_blocks import ROOT, blocks
from support.docs_pages import run_page
from support.servers import Server


@pytest.mark.parametrize("page", ["python-client", "from-confluent-kafka", "from-aiokafka"])
def test_blocks_of_a_page(own_server: Server, tmp_path: Path, page: str) -> None:
    name = f"docs/{page}.md"
    run_page(blocks(name, (ROOT / name).read_text()), tmp_path / "page", own_server.bootstrap)
