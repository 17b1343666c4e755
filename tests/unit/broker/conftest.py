"""Provide what the tests of this package share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.broker_fixtures import BrokerStorage


@pytest.fixture
def storage(tmp_path: Path) -> BrokerStorage:
    return BrokerStorage(tmp_path)
