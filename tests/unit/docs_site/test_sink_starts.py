"""docs/operations/sink-starts.md has every message of the sink that names an option, and no message that is gone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from support.docs_blocks import ROOT

PAGE = (ROOT / "docs/operations/sink-starts.md").read_text()
OPTIONS = ("takeOver", "adoptCheckpoint", "acceptReplay")
SPARK = ROOT / "src/oncelog/spark"
SOURCES = [*sorted(SPARK.glob("commit/*.py")), *sorted(SPARK.glob("cluster/*.py")), SPARK / "writing/driver.py"]
NAMES = SPARK / "commit/names.py"
"""Checks the value of transactionalIdPrefix. The last paragraph of the page covers such messages."""
GAP = "…"


def text(node: ast.expr, names: dict[str, ast.expr]) -> str:
    """Return a message with `GAP` for what is not known. A local variable has the text that is assigned to it."""
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(text(part, names) for part in parts)
        case ast.FormattedValue(value=value):
            return text(value, names)
        case ast.IfExp(body=one, orelse=other):
            return f"{text(one, names)}{GAP}{text(other, names)}"
        case ast.Name(id=name) if name in names:
            return text(names[name], {})
    return GAP


def messages() -> Iterator[str]:
    """Yield the text of each error, and of each function that returns a part of one."""
    for path in SOURCES:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            names: dict[str, ast.expr] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    names[node.targets[0].id] = node.value
            for node in ast.walk(function):
                match node:
                    case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name.endswith("Error"):
                        yield text(first, names)
                    case ast.Return(value=ast.Constant(value=str() as value)):
                        yield value


ALL = list(messages())
WITH_OPTION = [
    message
    for message in ALL
    if re.search(rf"\boption |kafka\.|{'|'.join(OPTIONS)}", message) and "it must be 1 to 200 letters" not in message
]


def phrases(section: str) -> list[str]:
    """Return the words of messages in the first column of a section's table."""
    body = PAGE[PAGE.index(f"\n## {section}\n") :].split("\n## ", 2)[1]
    rows = [line.split(" | ")[0] for line in body.splitlines() if line.startswith("| `")]
    return [phrase for cell in rows for phrase in re.findall("`(.*?)`", cell)]


SECTIONS = {section: phrases(section) for section in (*OPTIONS, "Other messages")}


def has(message: str, phrase: str) -> bool:
    """Return whether the parts of a phrase are in a message, in their order."""
    at = 0
    for part in phrase.split("..."):
        at = message.find(part.strip(), at)
        if at < 0:
            return False
    return True


def test_messages_were_found() -> None:
    assert len(WITH_OPTION) > 15
    assert sum(map(len, SECTIONS.values())) > 20


@pytest.mark.parametrize("option", OPTIONS)
def test_every_message_that_names_the_option_is_in_its_section(option: str) -> None:
    """A message may name a second option for one of its cases, so any of the three sections may have it."""
    named = [message for message in WITH_OPTION if option in message]
    assert named
    for message in named:
        found = {section for section in OPTIONS if any(has(message, phrase) for phrase in SECTIONS[section])}
        assert found, message
        assert any(section in message for section in found), message


def test_every_message_with_an_option_is_on_the_page() -> None:
    every = [phrase for found in SECTIONS.values() for phrase in found]
    assert [message for message in WITH_OPTION if not any(has(message, phrase) for phrase in every)] == []


def test_page_has_no_message_that_is_gone() -> None:
    for section, found in SECTIONS.items():
        for phrase in found:
            assert any(has(message, phrase) for message in ALL), f"{section}: {phrase}"


def test_guide_links_to_the_page() -> None:
    assert "operations/sink-starts.md" in (ROOT / "docs/spark.md").read_text()
