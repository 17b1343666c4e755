"""Define the parameters and results of kernels for the kernels, their compiler and their callers.

A kernel takes integers, and for each array the result of `at`. It returns a number.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

MALFORMED: Final = -1
TOO_SMALL: Final = -2

SIGNATURES: Final = {
    "avro_read": "qqB" "qqq" "BqB" "nnnn" "qq",
    "avro_write": "qqB" "qB" "n" "qq" "Bqq",
    "base64_decode": "BqBq",
    "base64_encode": "BqBq",
    "count_headers": "Bn",
    "cut_records": "Bnnnnq",
    "decode_batches": "qn" "qqi" "qBBqBB" "?" "qqBBqBB",
    "encode_records": "qnnnq" "?qBB" "?qBB" "?qqBqBB" "Bq",
    "json_lines": "BqBBBq",
    "json_shaped": "BqqBqnBqq",
    "longest_row": "n?q?q?qqq",
    "murmur2_partitions": "qBBni",
}  # fmt: skip
"""Parameters of each kernel: B, i and q are arrays of uint8, int32 and int64, n is a number, and ? a truth value."""

ON_DEMAND: Final = frozenset({"avro_read", "avro_write", "base64_decode", "base64_encode", "json_shaped"})
"""Kernels that only some formats need, so that others do not wait until they are compiled."""

ARRAYS: Final = {"B": np.dtype(np.uint8), "i": np.dtype(np.int32), "q": np.dtype(np.int64)}


def at(kind: str, array: Any) -> tuple[int, int]:
    """Return the address and length of an array, which are the arguments of a kernel. `kind` is a key of ARRAYS.

    The array must live until the kernel returns. Raises TypeError for any other kind of array, because a kernel would
    read beyond its end.
    """
    if array.dtype != ARRAYS[kind] or array.ndim != 1 or not array.flags.c_contiguous:
        raise TypeError(
            f"the array must be contiguous and of type {ARRAYS[kind]}, not {array.dtype} of shape {array.shape}"
        )
    return address(array), len(array)


def address(array: Any) -> int:
    """Return the address of an array's first number."""
    found: int = array.__array_interface__["data"][0]
    return found


def at_binary(ends: Any, valid: Any, data: Any) -> tuple[int, ...]:
    """Return the arguments of a kernel for a binary column: the ends of its values, their validity, and their bytes."""
    return (*at("q", ends), *at("B", valid), *at("B", data))
