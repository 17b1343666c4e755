"""Provide what the tests of this package share."""

from __future__ import annotations

import pytest

from support.transaction_driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver().start()
