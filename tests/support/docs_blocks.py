"""Find the blocks of a page of the documentation, and what the tests do with each.

A marker is an HTML comment on the line above a fence: `server`, `until: TEXT`, `fails: TEXT`, `file: NAME`, `output` or
`not run: REASON`. Without one, blocks of Python and sh are run; a block in another language is an error. The comments
`setup` (sh) and `check` (Python) are hidden blocks of their own.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNNABLE = ("python", "sh")
MARKERS = ("server", "until", "fails", "file", "output", "not run")
WITH_TEXT = ("until", "fails", "file", "not run")
LEAST_REASON = 2
"""The fewest words of a reason."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,}) *(?P<language>[\w+-]*)(?P<rest>.*)$")
_COMMENT = re.compile(r"^ *<!-- *(?P<words>.*?) *-->$")
_HIDDEN = re.compile(r"^<!-- (?P<kind>setup|check)$")


class BlockError(Exception):
    """A block is not declared as the rules say. The message names page and line."""


@dataclass(frozen=True)
class Block:
    """One block. `kind` is a marker, `run`, `setup` or `check`, and `text` what the marker says after its colon."""

    page: str
    line: int
    kind: str
    language: str
    code: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the README and the pages of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(name: str, text: str) -> list[Block]:
    """Return the blocks of a page in their order. Raises BlockError."""
    found = list(_blocks(name, text.splitlines()))
    ran = False
    for block in found:
        if block.kind == "output" and not ran:
            raise BlockError(f"{block}: there is no block before it whose output this could be")
        ran = ran or block.kind in ("run", "until", "fails", "server")
    return found


def _blocks(name: str, lines: list[str]) -> Iterator[Block]:
    number = 0
    while number < len(lines):
        hidden, fence = _HIDDEN.match(lines[number]), _FENCE.match(lines[number])
        if hidden:
            end = _end(name, number, lines, lambda line: line.strip() == "-->")
            language = "sh" if hidden["kind"] == "setup" else "python"
            yield Block(name, number + 2, hidden["kind"], language, _code(lines[number + 1 : end]))
            number = end
        elif fence:
            ticks = fence["ticks"]
            end = _end(name, number, lines, lambda line, ticks=ticks: line.strip() == ticks)
            code = _code(lines[number + 1 : end])
            yield _declared(name, number, fence["language"], code, lines[number - 1] if number else "")
            number = end
        number += 1


def _end(name: str, begin: int, lines: list[str], closes: object) -> int:
    for number in range(begin + 1, len(lines)):
        if closes(lines[number]):  # type: ignore[operator]
            return number
    raise BlockError(f"{name}:{begin + 1}: the block has no end")


def _code(lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines)) + "\n"


def _declared(name: str, number: int, language: str, code: str, above: str) -> Block:
    """Return the block of a fence with its marker. Raises BlockError."""
    where = f"{name}:{number + 1}"
    if not language:
        raise BlockError(f"{where}: the fence has no language")
    comment = _COMMENT.match(above)
    if comment is None:
        if language not in RUNNABLE:
            raise BlockError(f"{where}: a block of {language} needs a marker: {', '.join(MARKERS)}")
        return Block(name, number + 2, "run", language, code)
    kind, _, text = (part.strip() for part in comment["words"].partition(":"))
    if kind not in MARKERS or bool(text) is not (kind in WITH_TEXT):
        raise BlockError(f"{where}: {comment['words']!r} is not a marker of a block")
    if kind == "not run" and len(text.split()) < LEAST_REASON:
        raise BlockError(f"{where}: say in a few words why the block is not run")
    if kind in ("until", "fails") and language not in RUNNABLE:
        raise BlockError(f"{where}: {kind} is for blocks of {' and '.join(RUNNABLE)}")
    if kind == "server" and (language != "sh" or "oncelog up" not in code):
        raise BlockError(f"{where}: server is for one `oncelog up` in sh")
    return Block(name, number + 2, kind, language, code, text)


def same_output(expected: str, found: str) -> bool:
    """Return whether an output is as printed. `...` stands for any text in a line, or alone for any lines."""
    pattern = ""
    for line in expected.strip().splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
    return re.fullmatch(pattern, found.strip() + "\n") is not None
