"""Record batches to Arrow arrays and back, in one pass."""

from __future__ import annotations

try:
    import numba  # noqa: F401
    import numpy  # noqa: F401
    import pyarrow  # noqa: F401
except ImportError as error:
    raise ImportError(f"tables need {error.name}, which `pip install 'oncelog[arrow]'` brings") from error
