"""`oncelog console`: run the web console."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import click

from oncelog import errors
from oncelog.cli.client_settings import client_settings
from oncelog.cli.common import connected
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note
from oncelog.cli.up_console import console_token, listen, require_console
from oncelog.protocol.addresses import bracketed

if TYPE_CHECKING:
    from oncelog.console.app import Console

REQUEST_WAIT_MS, CALL_WAIT_MS = 3_000, 10_000
"""How long a page waits for a response of one broker, and for a call with its retries, which may ask another broker."""

CONTACT_MS = 3_000
"""How long the command waits for the brokers before it serves pages."""


@click.command(epilog=examples("oncelog console", "oncelog console -b kafka:9092 --read-only --port 8081"))
@connected
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, help="Port to listen on. Default: 8080. 0: any free port."
)
@click.option(
    "--host", default="127.0.0.1", help="Address to listen on. Default: 127.0.0.1. Any other address needs a login."
)
@click.option(
    *("--name", "names"),
    multiple=True,
    help="A host name in browsers' addresses, besides localhost and numbers. Repeatable.",
)
@click.option(
    "--read-only/--allow-changes",
    default=None,
    help="Whether the pages may change something. Default: they may if --host is this machine only.",
)
@click.option("--listener", type=int, hidden=True, help="The descriptor of a socket that listens, instead of --port.")
@click.option("--parent-pid", type=int, hidden=True, help="Stop when this process, which ran the command, ends.")
def console(
    bootstrap: str,
    port: int,
    host: str,
    names: tuple[str, ...],
    read_only: bool | None,
    listener: int | None,
    parent_pid: int | None,
) -> None:
    """Show a cluster in a browser: topics, logs, transactions, producers and groups. Works with Apache Kafka, too.

    When the console answers, the command prints one line CONSOLE=http://HOST:PORT/ on stdout. A browser must log in
    with a token, the one in ONCELOG_CONSOLE_TOKEN or one that the command prints. It need not if the console listens
    on this machine only, and itself needs no login.
    """
    require_console()
    from oncelog.console.app import Console
    from oncelog.console.guard import Guard, is_loopback
    from oncelog.console.server import serve

    local = is_loopback(host)
    settings = {"request.timeout.ms": REQUEST_WAIT_MS, **client_settings(), "client.id": "oncelog-console"}
    # Whoever reaches the console acts with its login, so other users of this machine must not reach it.
    logs_in = any(name.startswith(("sasl.", "ssl.key")) for name in settings)
    listening = listen(host, port) if listener is None else socket.socket(fileno=listener)
    token = None if local and not logs_in else console_token()
    own = {host.lower()} if local else {host.lower(), socket.gethostname().lower()}
    guard = Guard(frozenset({*own, *(name.lower() for name in names)}), token)
    changes = local if read_only is None else not read_only
    options = {"default.api.timeout.ms": CALL_WAIT_MS}

    def ready() -> None:
        click.echo(f"CONSOLE=http://{bracketed(host)}:{listening.getsockname()[1]}/")

    def orphaned() -> bool:
        return parent_pid is not None and os.getppid() != parent_pid

    async def run() -> None:
        made = Console(bootstrap, settings, changes=changes, guard=guard, options=options)
        try:
            await _contact(made)
            await serve(made, listening, ready, orphaned)
        finally:
            await made.close()

    asyncio.run(run())


async def _contact(made: Console) -> None:
    """Raise AuthenticationError if the brokers reject the login. If they do not answer yet, only say so."""
    try:
        await made.admin.cluster.reach(CONTACT_MS)
    except errors.RetriableError as error:
        note(f"the brokers do not answer, and the console asks them again: {error}", level="WARNING")
