"""kcat (librdkafka, in C) against either server."""

from __future__ import annotations

import subprocess

import pytest

from support.command_line import Tool
from support.servers import Server


def kcat(server: Server, *arguments: str, stdin: str = "") -> str:
    """Run kcat, and return its stdout."""
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


FORMATS = (
    *("%s|\\n", "%S %K|\\n", "%k=%s;%T\\n", "%t %p %o\\n", "%h\\n", "%%\\n", "%%s\\n", "\\x41b\\x9\\n"),
    *("\\x414z\\n", "\\101\\n", "\\012|", "\\\\\\n", "\\q\\n", "é%s\\n", "\\n\\r\\t"),
)
STARTS = ("beginning", "end", "0", "1", "-1", "-2", "-99", "3", "s@0", "s@1001", "s@99999999999999")


def test_our_command_line_prints_what_kcat_prints(server: Server, name: str) -> None:
    """All tokens and escapes of `-f`, all forms of `-o`: null and empty keys and values, with and without headers."""
    tool = Tool(server.bootstrap)
    tool("topic", "create", name)
    tool("topic", "produce", name, "-K", ":", "-H", "a=1", "-H", "b", "-H", "c=", stdin="k1:v1\n")
    tool("topic", "produce", name, "-K", ":", "-Z", stdin=":\n")
    tool("topic", "produce", name, "-K", ":", stdin=":x\n")
    for template in FORMATS:
        theirs = kcat(server, "-C", "-t", name, "-e", "-q", "-f", template)
        assert tool("topic", "consume", name, "-e", "-f", template) == theirs, template
    first = ("-t", name, "-c", "1", "-f", "%R")  # the length of null is not text
    assert tool("topic", "consume", *first[1:]) == kcat(server, "-C", "-q", *first) == "\0\0\0\2"
    for start in STARTS:
        theirs = kcat(server, "-C", "-t", name, "-e", "-q", "-o", start, "-f", "%o ")
        assert tool("topic", "consume", name, "-e", "-o", start, "-f", "%o ") == theirs, start
    theirs = kcat(server, "-C", "-t", name, "-q", "-o", "s@0", "-o", "e@99999999999999", "-c", "2", "-f", "%o ")
    assert tool("topic", "consume", name, "-o", "s@0", "-o", "e@99999999999999", "-c", "2", "-f", "%o ") == theirs
