"""Which records of a topic a command reads: `-o/--offset` and `-p/--partition`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import click

from oncelog.cli.common import Command
from oncelog.cli.partition_tailer import BEGINNING, END, STORED, Start

NAMED = {"beginning": BEGINNING, "end": END, "stored": STORED}


class Span(NamedTuple):
    """The values of `-o`: where to begin, and the time (ms since the epoch) before which to stop."""

    start: Start = BEGINNING
    stop_ms: int | None = None
    is_given: bool = False


def with_span(verb: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options as the arguments `span` and `partitions`. `verb` begins a help text."""
    begin = click.option(
        *("-o", "--offset", "span"),
        callback=_parse,
        multiple=True,
        metavar="WHERE",
        help="Begin at this position. Default: beginning.",
    )
    partitions = click.option(
        *("-p", "--partition", "partitions"),
        type=click.IntRange(min=0),
        multiple=True,
        help=f"{verb} this partition only. Repeatable. Default: all partitions.",
    )
    return lambda command: begin(partitions(command))


def _parse(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> Span:
    """Parse `beginning`, `end`, `stored`, N, -N and `s@TIMESTAMP`, and in a second `-o` `e@TIMESTAMP`, as kcat does."""
    starts, stops = [], []
    for value in values:
        found = re.fullmatch(r"(s@|e@)?(-?\d{1,18})", value)
        if value in NAMED:
            starts.append(NAMED[value])
        elif found is None or (found[1] and found[2].startswith("-")):
            raise click.BadParameter(f"it must be beginning, end, stored, N, -N, s@MS or e@MS, not {value!r}")
        elif found[1] == "e@":
            stops.append(int(found[2]))
        else:
            starts.append(Start(timestamp=int(found[2])) if found[1] else Start(int(found[2])))
    if len(starts) > 1 or len(stops) > 1:
        raise click.BadParameter("give at most one position to begin at and, with e@MS, one time to stop at")
    return Span(starts[0] if starts else BEGINNING, stops[0] if stops else None, bool(values))
