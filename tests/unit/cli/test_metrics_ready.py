"""`oncelog metrics ready`: the answer of a server as a sentence and an exit status."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest

from oncelog.cli.metrics import ready


@contextmanager
def server(body: bytes, status: int = 200) -> Iterator[int]:
    """Answer one request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            end, _ = listener.accept()
            with end:
                end.recv(65536)
                end.sendall(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def ask(port: int) -> None:
    with ready.make_context("ready", ["--port", str(port)]) as context:
        ready.invoke(context)


def test_ready_broker(capsys: pytest.CaptureFixture[str]) -> None:
    with server(b'{"ready":true,"missing":[]}\n') as port:
        ask(port)
    assert capsys.readouterr().out == "ready\n"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"ready":false,"missing":["a","b\\u001b[2J"]}', 503, r"is not ready: a; b\\u001b\[2J$"),
        (b"<html>", 200, "is no broker of oncelog"),
        (b"[]", 200, "is no broker of oncelog"),
        (b'{"missing":null}', 200, "is no broker of oncelog"),
    ],
)
def test_other_answers_are_errors(body: bytes, status: int, message: str) -> None:
    with server(body, status) as port, pytest.raises(click.ClickException, match=message):
        ask(port)


def test_port_without_a_server_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(click.ClickException, match=f"no broker serves its metrics at 127.0.0.1:{port}"):
            ask(port)
