"""What a user is told when the abort after an error fails, too."""

from __future__ import annotations

import pytest

from oncelog import errors
from oncelog.client.producer._shared import abort_failed


def test_an_abort_that_ends_the_producer_is_raised_over_an_error_that_would_let_it_go_on() -> None:
    first, second = errors.AbortableError("first"), errors.FencedError("second")
    with pytest.raises(errors.FencedError) as caught:
        abort_failed(first, second)
    assert caught.value is second
    assert second.__cause__ is first


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ValueError("first"), errors.FencedError("second")),
        (errors.FatalError("first"), errors.FencedError("second")),
        (errors.AbortableError("first"), errors.TimedOutError("second")),
    ],
)
def test_any_other_error_stands_and_tells_of_the_abort(first: BaseException, second: errors.KafkaError) -> None:
    abort_failed(first, second)
    assert first.__notes__ == [f"aborting the transaction failed: {second}"]
