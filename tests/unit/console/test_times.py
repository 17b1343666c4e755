"""Times and offsets that a person enters."""

from __future__ import annotations

import pytest

from oncelog.client.admin.groups import Target
from oncelog.console.guard import RefusedError
from oncelog.console.pages.group import _target, time_of


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1500", 1500),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1969-12-31T19:00:01-05:00", 1000),
    ],
)
def test_time_is_utc_unless_it_says_otherwise(text: str, ms: int) -> None:
    assert time_of(text) == ms


@pytest.mark.parametrize("choice", ["offset", "shift", "time"])
def test_number_that_fits_into_no_request_is_refused(choice: str) -> None:
    with pytest.raises(RefusedError, match="is not a value"):
        _target(choice, "9" * 20)
    assert isinstance(_target(choice, "1"), Target)
