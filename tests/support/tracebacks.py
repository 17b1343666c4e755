"""Count the frames that an exception keeps."""

from __future__ import annotations

import traceback
from collections.abc import Callable


def depth(call: Callable[[], object], expected: type[BaseException]) -> int:
    """Call a function that raises an exception, and return the length of its traceback."""
    try:
        call()
    except expected as error:
        return len(list(traceback.walk_tb(error.__traceback__)))
    raise AssertionError(f"{expected.__name__} was not raised")
