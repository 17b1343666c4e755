"""Check the links of the repository's pages as a reader of a clone or of GitHub follows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_ID = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")


def dead_links(root: Path) -> Iterator[str]:
    """Yield a line for each link or image that leads to no file, or to no heading of one."""
    for pattern in PAGES:
        for page in sorted(root.glob(pattern)):
            text = _text(page)
            for address in _LINK.findall(_CODE.sub("``", text)):
                if why := _dead(address, page):
                    yield f"{page.relative_to(root)} refers to {address}: {why}"


def _text(page: Path) -> str:
    return _COMMENT.sub("", _FENCE.sub("", page.read_text()))


def _dead(address: str, page: Path) -> str:
    """Return what is wrong with an address, or an empty text."""
    if re.match(r"[a-z]+:", address):
        return ""
    name, _, anchor = address.partition("#")
    target = (page.parent / unquote(name)).resolve() if name else page
    if not target.exists():
        return "no such file"
    if anchor and target.suffix == ".md" and unquote(anchor) not in _anchors(target):
        return "no such heading"
    return ""


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = _text(page)
    found = set(_ID.findall(text))
    for heading in _HEADING.findall(text):
        plain = _LINK.sub(lambda link: link[0][1:].partition("]")[0], heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeated = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        found.add(f"{slug}-{repeated}" if repeated else slug)
    return found
