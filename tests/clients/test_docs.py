"""Every snippet of the Python client's page, on either server."""

from __future__ import annotations

from pathlib import Path

from support.docs_blocks import ROOT, blocks
from support.docs_pages import run_page
from support.servers import Server

PAGE = "docs/python-client.md"


def test_blocks_of_the_python_clients_page(own_server: Server, tmp_path: Path) -> None:
    run_page(blocks(PAGE, (ROOT / PAGE).read_text()), tmp_path / "page", own_server.bootstrap)
