"""kcat (librdkafka in C) against either server."""

from __future__ import annotations

import subprocess

import pytest

from support.servers import Server


def kcat(server: Server, *arguments: str, stdin: str = "") -> str:
    """Run kcat; its stdout."""
    command = ["kcat", "-b", server.bootstrap, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_and_consume(server: Server, name: str, codec: str) -> None:
    lines = "".join(f"k{i}|{i}\n" for i in range(1000))
    kcat(server, "-P", "-t", name, "-K|", "-z", codec, "-X", "enable.idempotence=true", "-H", "h=1", stdin=lines)
    assert kcat(server, "-C", "-t", name, "-e", "-q", "-f", "%k|%s\n") == lines
    last = kcat(server, "-C", "-t", name, "-o", "-1", "-e", "-q", "-f", "%p %o %h %k=%s\n")
    assert last == "0 999 h=1 k999=999\n"


def test_metadata_and_offsets(server: Server, name: str) -> None:
    kcat(server, "-P", "-t", name, stdin="one\ntwo\n")
    listed = kcat(server, "-L", "-t", name)
    assert "1 brokers:" in listed
    assert f'topic "{name}" with 1 partitions:' in listed
    assert kcat(server, "-Q", "-t", f"{name}:0:-1").strip() == f"{name} [0] offset 2"
    assert kcat(server, "-Q", "-t", f"{name}:0:-2").strip() == f"{name} [0] offset 0"
