"""What a client says while nobody answers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from oncelog import errors
from oncelog.client import cluster as module
from oncelog.client.cluster import ClusterClient


def tries(address: str, count: int) -> None:
    async def go() -> None:
        async with ClusterClient(address) as cluster:
            for _ in range(count):
                with pytest.raises(errors.ConnectionFailedError, match=address):
                    await cluster.refresh([])

    asyncio.run(go())


@pytest.mark.parametrize(("silent", "count", "lines"), [(0.0, 1, 0), (0.0, 4, 1), (3600.0, 4, 0)])
def test_an_outage_is_said_once_and_not_at_its_first_failure(
    silent: float, count: int, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SILENT_SECONDS", silent)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        tries(address, count)
    said = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert len(said) == lines
    assert all(address in line and line.endswith("still trying") for line in said)
