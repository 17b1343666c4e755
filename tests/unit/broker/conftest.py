"""What tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.log_houses import House


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)
