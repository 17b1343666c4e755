"""What tests of this room share."""

from __future__ import annotations

import pytest

from support.transaction_driver import Driver


@pytest.fixture
def driver() -> Driver:
    return Driver().start()
