"""Check built HTML: no link is broken, and a browser loads nothing from the network when it shows a page."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "link": "href",
    "object": "data",
}
"""Attributes that make a browser load something, by element."""

NOT_LOADED = {"canonical", "prev", "next", "alternate"}
"""Values of `rel` with which a `link` loads nothing."""


class Page(HTMLParser):
    """What one page loads, where it links to, and the targets of links that it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.targets: set[str] = {""}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the element's addresses and its id."""
        given = {name: value or "" for name, value in attrs}
        self.targets.update(given[name] for name in ("id", "name") if name in given)
        address = given.get(LOADS.get(tag, ""), "")
        if address and not set(given.get("rel", "").split()) & NOT_LOADED:
            self.loads.append(address)
        elif tag == "a" and given.get("href"):
            self.links.append(given["href"])


def findings(site: Path) -> Iterator[str]:
    """Yield a line for each broken link, and for each address on the network that a page loads."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links depend on the address that does not exist
        name = path.relative_to(site)
        for address in page.loads:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                yield f"{name} loads {address} from the network"
        for address in (*page.links, *page.loads):
            broken = _broken(address, path, pages)
            if broken:
                yield f"{name} refers to {address}: {broken}"


def _broken(address: str, path: Path, pages: dict[Path, Page]) -> str:
    """Return what is wrong with an address, or an empty text."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].targets:
        return "no such anchor"
    return ""
