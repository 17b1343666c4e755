"""Simulate a system that refuses to reserve large pieces of memory."""

from __future__ import annotations

import errno
import mmap
from types import SimpleNamespace
from typing import NoReturn

import pytest

from oncelog.protocol import memory


def refuse_large_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail each reservation of memory, as beyond the limit of a container or of the address space."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    flags = {"MAP_PRIVATE": mmap.MAP_PRIVATE, "MAP_ANONYMOUS": mmap.MAP_ANONYMOUS}
    monkeypatch.setattr(memory, "mmap", SimpleNamespace(mmap=refuse, **flags))
