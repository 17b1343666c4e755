"""The parameters and results of kernels, for the kernels, their compiler and their callers.

A kernel takes integers, and the results of `at` for arrays. It returns a number.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

MALFORMED: Final = -1
TOO_SMALL: Final = -2

SIGNATURES: Final = {
    "count_headers": "Bn",
    "cut_records": "Bnnnnq",
    "decode_batches": "qn" "qqi" "qBBqBB" "?" "qqBBqBB",
    "encode_records": "qnnnq" "?qBB" "?qBB" "?qqBqBB" "Bq",
    "json_lines": "BqBBBq",
    "longest_row": "n?q?q?qqq",
    "murmur2_partitions": "qBBni",
}  # fmt: skip
"""Parameters: arrays of B uint8, i int32, q int64; n a number, ? a truth value. All give a number."""

ARRAYS: Final = {"B": np.dtype(np.uint8), "i": np.dtype(np.int32), "q": np.dtype(np.int64)}


def at(kind: str, array: Any) -> tuple[int, int]:
    """An array, of which `kind` is in ARRAYS, as kernels take it: address and length. It must live until they return.

    TypeError for another kind of array: a kernel would read beyond it.
    """
    if array.dtype != ARRAYS[kind] or array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(f"a contiguous array of {ARRAYS[kind]} is needed, not {array.dtype} of shape {array.shape}")
    return array.__array_interface__["data"][0], len(array)


def at_binary(ends: Any, valid: Any, data: Any) -> tuple[int, ...]:
    """A binary column as kernels take it: where each value ends, which are not null, and their bytes."""
    return (*at("q", ends), *at("B", valid), *at("B", data))
