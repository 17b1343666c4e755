"""`oncelog top`: what a cluster does now, live in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from oncelog.cli.common import connected, open_cluster, printable, quiet, with_max_transaction_timeout
from oncelog.cli.lazy import examples

if TYPE_CHECKING:
    from oncelog.watch.reader import Reader
    from oncelog.watch.readings import Picture

SUBJECTS = ("topics", "groups", "transactions", "brokers")
WIDE = 200
"""Columns of the tables in a file or pipe."""


@click.command(epilog=examples("oncelog top", "oncelog top --only groups", "oncelog top --once --format json"))
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two readings.",
)
@click.option("--once", is_flag=True, help="Read twice, print the rates between, and exit.")
@click.option(
    *("--format", "form"),
    type=click.Choice(["table", "json"]),
    default="table",
    help="Show tables (default), or print each reading as a line of JSON.",
)
@click.option("--only", type=click.Choice(SUBJECTS), help="Read and show only these.")
@with_max_transaction_timeout(
    "A transaction that no coordinator knows hangs after this time: the brokers' transaction.max.timeout.ms."
)
@connected
def top(interval: float, once: bool, form: str, only: str | None, max_transaction_timeout: int, bootstrap: str) -> None:
    """Show topics by rate, groups by lag, open transactions by age, and brokers, until q or Ctrl-C.

    A transaction hangs if no coordinator will end it. It is listed first, and `oncelog txn abort` ends it. Without a
    terminal, print the tables at each reading.
    """
    subjects = SUBJECTS if only is None else (only,)
    live = form == "table" and not once and _is_screen()
    run = _watch_live if live else _print_readings
    asyncio.run(run(bootstrap, subjects, interval, once, form, max_transaction_timeout * 60_000))


def _is_screen() -> bool:
    """Return whether stdout is a terminal that can be redrawn."""
    from rich.console import Console

    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


async def _watch_live(
    bootstrap: str, subjects: tuple[str, ...], interval: float, _once: bool, _form: str, hanging_after_ms: int
) -> None:
    from oncelog.cli.top_screen import Screen
    from oncelog.watch.reader import Reader

    async with open_cluster(bootstrap) as cluster:
        reader = Reader(cluster, subjects=subjects)
        with quiet():  # a log line would break the screen, which shows the troubles
            async with Screen(subjects, interval, hanging_after_ms) as screen:
                await screen.run(reader)


async def _print_readings(
    bootstrap: str, subjects: tuple[str, ...], interval: float, once: bool, form: str, hanging_after_ms: int
) -> None:
    from oncelog.watch.document import document
    from oncelog.watch.reader import Reader
    from oncelog.watch.turns import LIVE, ONCE

    async with open_cluster(bootstrap) as cluster:
        reader = Reader(cluster, subjects=subjects, limits=ONCE if once else LIVE)
        with quiet():
            async for picture in _readings(reader, interval, once):
                if form == "json":
                    found = document(picture, subjects, hanging_after_ms)
                    click.echo(printable(json.dumps(found, ensure_ascii=False)))
                else:
                    _print_tables(picture, subjects, interval, hanging_after_ms)
                sys.stdout.flush()


async def _readings(reader: Reader, interval: float, once: bool) -> AsyncIterator[Picture]:
    """Yield each reading; with `once`, only the second, which has rates."""
    if once:
        await reader.turn()
        await asyncio.sleep(interval)
        yield await reader.turn()
        return
    while True:
        yield await reader.turn()
        await asyncio.sleep(interval)


def _print_tables(picture: Picture, subjects: tuple[str, ...], interval: float, hanging_after_ms: int) -> None:
    from rich.console import Console

    from oncelog.cli.top_tables import View

    # A file or pipe has no width. Console takes 80 columns for it, which cuts names, unless COLUMNS says otherwise.
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
    Console(soft_wrap=False, width=width).print(View(picture, subjects, interval, hanging_after_ms))
