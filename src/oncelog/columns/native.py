"""Compile kernels to machine code with numba, once on each machine. After that, llvmlite alone loads them.

numba's own cache needs all of numba to load a kernel. This takes 0.75 s of CPU and 70 MB in every Python worker that
Spark starts, ten times as much as llvmlite. The files are in the directory that NUMBA_CACHE_DIR names. Otherwise, they
are both beside this module and in the user's cache directory. A lock file lets one process compile while others wait
for its result. If no directory can be written, each process compiles for itself. A file's name has a digest of
everything that its code depends on: the kernels' source, llvmlite's version and the processor.

A kernel releases the interpreter's lock, so that the client's loop can receive records while another thread builds a
table.
"""

# llvmlite has no type annotations:
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import llvmlite
from llvmlite import binding

from oncelog.columns.signatures import ARRAYS, ON_DEMAND, SIGNATURES

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

SOURCES: Final = (
    "avro/operations.py", "avro/read_kernel.py", "avro/write_kernel.py", "compiler.py", "json_kernel.py",
    "json_nodes.py", "kernels.py", "native.py", "signatures.py",
)  # fmt: skip
"""Files that determine the machine code."""

Kernel = Callable[..., int]

log = logging.getLogger(__name__)

_loaded: list[Any] = []
"""Machine code in use, which is never freed."""
_in_use: set[str] = set()
"""The names of the kernels that are loaded."""


@cache
def kernel(name: str) -> Kernel:
    """Return the kernel for one of SIGNATURES, from a file if there is one."""
    place = f"{name}-{_key()}.o"
    found = _find(name, place)
    if found is not None:
        return found
    with _compilation_lock() as lock:
        found = _find(name, place)  # another process or thread has compiled it in the meantime
        if found is not None:
            return found
        _log_compiling(lock)  # log first, because compiling takes long
        from oncelog.columns.compiler import compiled

        code = _sealed(*compiled(name, SIGNATURES[name], _machine()))
        _keep(place, code)
    made = _load(name, code)
    if made is None:
        raise RuntimeError(f"cannot load the machine code of {name} that was just compiled")
    return made


def _find(name: str, place: str) -> Kernel | None:
    """Return a kernel from its file, or None if no directory has a complete file."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            found = _load(name, (folder / place).read_bytes())
            if found is not None:
                return found
    return None


def load() -> None:
    """Load or compile the kernels that all tables need now, so that no later call has to wait for it."""
    for name in SIGNATURES.keys() - ON_DEMAND:
        kernel(name)


def loaded() -> bool:
    """Return whether the kernels that all tables need are loaded."""
    return SIGNATURES.keys() - ON_DEMAND <= _in_use


def _machine() -> Any:
    """Return LLVM's description of this processor."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple()
    return target.create_target_machine(cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True)


def _sealed(symbol: str, code: bytes) -> bytes:
    """Return a file's contents: a digest that reveals an incomplete file, the entry's name, and the object code."""
    rest = symbol.encode() + b"\n" + code
    return hashlib.sha256(rest).digest() + rest


def _load(name: str, contents: bytes) -> Kernel | None:
    """Return the kernel in the contents of a file, or None if they are damaged."""
    digest, rest = contents[:32], contents[32:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    symbol, _, code = rest.partition(b"\n")
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    _in_use.add(name)
    kinds = [kind for letter in SIGNATURES[name] for kind in _C[letter]]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(engine.get_function_address(symbol.decode()))


_C: Final = {
    **dict.fromkeys(ARRAYS, (ctypes.c_void_p, ctypes.c_int64)),
    "n": (ctypes.c_int64,),
    "?": (ctypes.c_int64,),
}


@cache
def _key() -> str:
    """Return a digest of everything that the machine code depends on."""
    source = b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
    features = binding.get_host_cpu_features().flatten()
    on = (llvmlite.__version__, binding.get_default_triple(), binding.get_host_cpu_name(), features)
    return hashlib.sha256(source + repr(on).encode()).hexdigest()[:20]


def _folders() -> Iterator[Path]:
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        yield Path(given)
        return
    yield Path(__file__).parent / "__pycache__"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield Path(home) / "oncelog"


@cache
def _writable() -> Path | None:
    """Return the first directory in which files can be written, or None."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
    return None


@contextlib.contextmanager
def _compilation_lock() -> Iterator[int | None]:
    """Hold the compilation lock. Yield its descriptor, or None if the lock is not available.

    Otherwise, threads and processes that need the same kernels at the same time would all compile them.
    """
    folder = _writable()
    if folder is None or fcntl is None:
        yield None
        return
    try:
        lock = os.open(folder / f"kernels-{_key()}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield None
        return
    locked = False
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
            locked = True
        yield lock if locked else None
    finally:
        if locked:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a forked child may hold the descriptor
        os.close(lock)


def _log_compiling(lock: int | None) -> None:
    """Log why this takes long, once for these kernels. The lock file stores that the message was logged.

    The message is a warning, because Python shows nothing below this level by default.
    """
    if lock is None:
        _log_once()
        return
    with contextlib.suppress(OSError):
        if os.fstat(lock).st_size:
            return
        os.write(lock, b"logged\n")
    _log_once()


@cache
def _log_once() -> None:
    folder = _writable()
    log.warning(
        "compiling the table kernels for this processor; this takes some seconds, once. %s "
        "(set NUMBA_CACHE_DIR to use another directory)",
        "Not caching them, because no cache directory is writable" if folder is None else f"Caching them in {folder}",
    )


def _keep(place: str, contents: bytes) -> None:
    """Write a file to each writable directory. Other installations of this version find it in the user's cache.

    A reader sees either the complete file or none.
    """
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as drafts:
                draft = Path(drafts) / place
                draft.write_bytes(contents)
                os.replace(draft, folder / place)
