"""Convert record batches to Arrow arrays and back, in one pass."""

from __future__ import annotations

from importlib.util import find_spec

for _needed in ("numba", "numpy", "pyarrow"):  # numba itself is imported only when a kernel is compiled
    if find_spec(_needed) is None:
        raise ImportError(f"tables require {_needed}; run `pip install 'oncelog[arrow]'`")
