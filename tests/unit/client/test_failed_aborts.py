"""The error of a failed block whose abort fails, too."""

from __future__ import annotations

import pytest

from oncelog import errors
from oncelog.client.producer._shared import abort_failed


def test_abort_error_that_is_fatal_replaces_a_less_severe_error() -> None:
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
def test_other_errors_are_kept_with_a_note_about_the_abort(first: BaseException, second: errors.KafkaError) -> None:
    abort_failed(first, second)
    assert first.__notes__ == [f"the abort of the transaction failed as well: {second}"]
