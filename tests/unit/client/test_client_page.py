"""docs/python-client.md lists every public method, option and error, and nothing else."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import oncelog
from oncelog import aio, errors
from oncelog.client.consumer.options import CONSUMER
from oncelog.client.option_readers import Option
from oncelog.client.options import COMMON
from oncelog.client.producer.options import PRODUCER
from oncelog.client.producer.resumed import ResumedTransaction
from oncelog.protocol.compression import Codec

PAGE = (Path(__file__).parents[3] / "docs" / "python-client.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"\n###? ", PAGE)[1:]}
OF_THE_PRODUCER = {"send", "send_table", "send_offsets", "prepare"}
"""The methods that a transaction takes from its producer."""


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table, without its header."""
    found = [line.strip("| ").split(" | ") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return found[2:]


def named(cell: str) -> list[str]:
    return re.findall(r"`([A-Za-z_]+)`", cell)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("Producer", public(oncelog.Producer)),
        ("Transaction", public(oncelog.Transaction) | OF_THE_PRODUCER),
        ("ResumedTransaction", public(ResumedTransaction)),
        ("PreparedTransaction", public(oncelog.PreparedTransaction)),
        ("Consumer", public(oncelog.Consumer)),
        ("Admin", public(oncelog.Admin)),
    ],
)
def test_methods(section: str, expected: set[str]) -> None:
    assert sorted(name for row in rows(section) for name in named(row[0])) == sorted(expected)


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "Admin", "Transaction"])
def test_asyncio(kind: str) -> None:
    awaited, blocking = getattr(aio, kind), getattr(oncelog, kind)
    assert public(awaited) - public(blocking) <= {"start"}
    assert public(blocking) - public(awaited) == ({"commit_async"} if kind == "Consumer" else set())
    functions = {name for name in public(awaited) if inspect.isroutine(getattr(awaited, name))}
    at_once = {name for name in functions if not inspect.iscoroutinefunction(getattr(awaited, name))}
    printed = {row[0]: named(row[1]) for row in rows("asyncio")}
    assert sorted(printed.get(kind, [])) == sorted(at_once)


@pytest.mark.parametrize(
    ("section", "options"),
    [
        ("All clients", COMMON),
        ("Producers", {name: option for name, option in PRODUCER.items() if name not in COMMON}),
        ("Consumers", {name: option for name, option in CONSUMER.items() if name not in COMMON}),
    ],
)
def test_options(section: str, options: dict[str, Option]) -> None:
    printed = [pair for row in rows(section) for pair in re.findall(r"`(\w+)` \(([^;)]*)", row[1])]
    assert sorted(printed) == sorted((name, default(name, option.default)) for name, option in options.items())
    assert sorted(name for row in rows(section) for name in re.findall(r"`(\w+)`", row[1])) == sorted(options)


def default(name: str, value: Any) -> str:
    """Return a default as the page prints it."""
    if isinstance(value, Codec | bool):
        return (value.name if isinstance(value, Codec) else str(value)).lower()
    if isinstance(value, tuple):
        return ", ".join(value)
    return "all" if name == "acks" else "not set" if value in (None, "") else str(value)


def test_errors() -> None:
    expected = {name for name in errors.__all__ if name.endswith("Error")}
    assert set(re.findall(r"\w+Error\b", SECTIONS["Errors"])) == expected
    printed = [name for row in rows("Errors") for name in named(row[0])]
    assert sorted(printed) == sorted(expected - {"OncelogError", "KafkaError"})
