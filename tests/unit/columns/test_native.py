"""Machine code of the kernels: compiled once, loaded without numba, and never called with the wrong arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oncelog.columns import native
from oncelog.columns.signatures import SIGNATURES, at

USE = """
import sys
import numpy as np
import pyarrow as pa
from oncelog.columns.decode import decode_batches
from oncelog.columns.encode import encode_partition
from oncelog.protocol.records import stamp

# `pa.array` of Python's values would import pandas itself
ends = pa.py_buffer(np.array([0, 1, 3], np.int32))
keys = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"xyz")])
made = encode_partition(keys, keys)[0].buffer
stamp(made, -1, -1, -1, transactional=False)
table, after = decode_batches([made], topic="t\\u00e9", partition=3, start_offset=0)
assert after == 2 and table["topic"].to_pylist() == ["t\\u00e9"] * 2 and table["partition"].to_pylist() == [3, 3]
assert table["key"].to_pylist() == [b"x", b"yz"] == table["value"].to_pylist()
assert decode_batches([made], topic="t", partition=3, start_offset=0, end_offset=1)[0].num_rows == 1
print(*sorted({"numba", "pandas"} & set(sys.modules)))
"""


NULLS = """
import sys
import numpy as np
import pyarrow as pa
from oncelog.columns.encode import encode_partition
from oncelog.columns.decode import decode_batches
from oncelog.protocol.records import stamp

ends = pa.py_buffer(np.array([0, 1, 3], np.int32))
keys = pa.Array.from_buffers(pa.binary(), 2, [None, ends, pa.py_buffer(b"xyz")])
nulls = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(bytes([2])), ends, pa.py_buffer(b"xyz")])
pairs = pa.StructArray.from_arrays([keys, nulls], ["key", "value"])
lists = pa.py_buffer(np.array([0, 2, 2], np.int32))
headers = pa.Array.from_buffers(pa.list_(pairs.type), 2, [pa.py_buffer(bytes([1])), lists], children=[pairs])
times = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(np.array([5, 6]))])
made = encode_partition(keys, nulls, headers, times)[0].buffer
stamp(made, -1, -1, -1, transactional=False)
table, _ = decode_batches([made], topic="t", partition=3, start_offset=0, include_headers=True)
assert table["value"].to_pylist() == [None, b"yz"]
assert table["headers"].to_pylist() == [[{"key": "x", "value": None}, {"key": "yz", "value": b"yz"}], []]
print("pandas" in sys.modules)
"""


def test_columns_with_nulls_and_headers_import_no_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", NULLS], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "False"


def used(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[str, str]:
    """Return the heavy modules of a process after one round of encoding and decoding, and its log."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    command = [sys.executable, "-c", USE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip(), done.stderr.strip()


def imported(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    return used(monkeypatch, folder)[0]


def test_numba_is_imported_once_per_machine_and_pandas_never(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    heavy, log_text = used(monkeypatch, tmp_path / "cache")
    assert heavy == "numba"
    assert log_text == (
        "compiling the table kernels for this processor; this takes some seconds, once. Caching them in "
        f"{tmp_path / 'cache'} (set NUMBA_CACHE_DIR to use another directory)"
    )
    kept = {path.name.partition("-")[0] for path in (tmp_path / "cache").glob("*.o")}
    assert kept == {"decode_batches", "encode_records"}, "unused kernels are not compiled"
    assert used(monkeypatch, tmp_path / "cache") == ("", "")


def test_damaged_and_truncated_cache_files_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    imported(monkeypatch, tmp_path)
    whole = {path: path.read_bytes() for path in tmp_path.glob("*.o")}
    cut, changed = whole
    cut.write_bytes(whole[cut][:-100])
    changed.write_bytes(whole[changed][:-1] + bytes([whole[changed][-1] ^ 1]))
    assert imported(monkeypatch, tmp_path) == "numba"
    assert imported(monkeypatch, tmp_path) == ""
    assert sorted(tmp_path.glob("*.o")) == sorted(whole)


def test_processes_that_start_together_compile_and_log_once(tmp_path: Path) -> None:
    use = (
        "import sys\n"
        "from oncelog.columns.native import kernel\n"
        "kernel('count_headers'), kernel('murmur2_partitions')\n"
        "print('numba' in sys.modules)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", use], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    logged = "".join(process.communicate(timeout=300)[1] for process in processes)
    assert [process.returncode for process in processes] == [0, 0, 0], logged
    assert logged.count("compiling the table kernels") == 1, logged
    assert len(list(tmp_path.glob("*.o"))) == 2


def test_process_without_a_cache_folder_compiles_its_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = tmp_path / "a file"
    taken.touch()
    heavy, log_text = used(monkeypatch, taken)
    assert heavy == "numba"
    assert log_text.endswith(
        "Not caching them, because no cache directory is writable (set NUMBA_CACHE_DIR to use another directory)"
    )


def test_compiled_code_is_cached_in_the_users_folder_for_other_installations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "a file"
    taken.touch()
    folders = [tmp_path / "beside the module", taken, tmp_path / "user" / "cache"]
    monkeypatch.setattr(native, "_folders", lambda: iter(folders))
    native._keep("kernel.o", b"code")
    assert [(folder / "kernel.o").read_bytes() for folder in (folders[0], folders[2])] == [b"code"] * 2
    assert [path.name for path in folders[0].iterdir()] == ["kernel.o"]


def test_every_kernel_loads() -> None:
    for name in SIGNATURES:
        assert native.kernel(name) is native.kernel(name)


@pytest.mark.parametrize(
    "array", [np.zeros(4, np.int32), np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2], np.zeros(4, np.uint64)]
)
def test_array_of_another_type_is_rejected(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="the array must be contiguous and of type int64"):
        at("q", array)
