"""Write Markdown: tables, code and docstrings, as the generated pages need them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from html import escape

_SPECIAL = re.compile(r"([\\<>*|\[\]]|(?<!\w)_|_(?!\w))")
_ENTITIES = {"|": "&#124;", "[": "&#91;", "]": "&#93;", "*": "&#42;", "_": "&#95;", "`": "&#96;"}
_CODE = re.compile(r"(`[^`]+`)")


def text(words: str) -> str:
    """Escape prose for Markdown. What is between backticks stays code."""
    return "".join(
        part.replace("|", "&#124;") if part.startswith("`") else _SPECIAL.sub(r"\\\1", part)
        for part in _CODE.split(words)
    )


def code(words: str) -> str:
    """Return words as code that may be in a table."""
    for special, entity in {"&": "&amp;", "<": "&lt;", ">": "&gt;", **_ENTITIES}.items():
        words = words.replace(special, entity)
    return f"<code>{words}</code>" if words else ""


def anchor(name: str) -> str:
    """Return an invisible target for links to `name`."""
    return f'<a id="{escape(name)}"></a>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Its cells are Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("\n", " ") for cell in cells) + " |" for cells in lines) + "\n"


def docstring(of: object) -> str:
    """Return an object's docstring as Markdown. Indented lines are code. Empty if there is none."""
    return _prose(inspect.getdoc(of) or "")


def summary(of: object) -> str:
    """Return the first paragraph of a docstring as Markdown on one line."""
    return text(" ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split()))


def _prose(words: str) -> str:
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", words.strip("\n")):
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            paragraphs.append(paragraph)
        else:
            paragraphs.append(text(" ".join(paragraph.split())))
    return "\n\n".join(paragraphs)
