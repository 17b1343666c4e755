"""Build the site: collect the pages, generate the others, run Zensical strictly, check the HTML that it wrote."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs_site import html_check
from docs_site.clone_check import dead_links
from docs_site.reference import PAGES, generated

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "zensical.toml"
PROJECT = ROOT / ".cache" / "site"
"""A folder with all that Zensical reads and writes: the configuration, the pages and its cache, which it may delete."""
WRITTEN = ROOT / "docs"
CLONES_PAGE = "reference.md"
"""The page under `docs/` that says how to open the generated pages. The site does not need it."""
SITE = ROOT / "site"
ASSETS = ROOT / "docs_site" / "assets"


class BuildError(Exception):
    """The site could not be built. The message says why."""


def build() -> Path:
    """Build the site from nothing and return its folder. Raises BuildError."""
    if dead := list(dead_links(ROOT)):
        raise BuildError("\n".join(dead))
    shutil.rmtree(PROJECT, ignore_errors=True)
    collect()
    pages = {path.relative_to(PROJECT / "docs").as_posix() for path in PROJECT.glob("docs/**/*.md")}
    listed = set(nav_pages(tomllib.loads(CONFIG.read_text())["project"]["nav"]))
    if listed - pages:
        raise BuildError(f"the nav of {CONFIG.name} names pages that do not exist: {', '.join(sorted(listed - pages))}")
    if pages - listed:
        raise BuildError(f"the nav of {CONFIG.name} lacks pages: {', '.join(sorted(pages - listed))}")
    done = subprocess.run([*zensical("build"), "--strict"], cwd=PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        output = re.sub("\x1b\\[[0-9;]*m", "", done.stdout + done.stderr).partition("Traceback")[0]
        raise BuildError(f"zensical build --strict failed:\n{output}")
    found = list(html_check.findings(PROJECT / "site"))
    if found:
        raise BuildError("\n".join(found))
    shutil.rmtree(SITE, ignore_errors=True)
    return (PROJECT / "site").rename(SITE)


def collect() -> None:
    """Copy the written pages and write the generated ones. Files that have not changed keep their times."""
    wanted = {path.relative_to(WRITTEN).as_posix(): path.read_bytes() for path in WRITTEN.rglob("*") if path.is_file()}
    wanted.pop(CLONES_PAGE, None)
    wanted = {name: _on_the_site(data) if name.endswith(".md") else data for name, data in wanted.items()}
    wanted |= {f"assets/{path.name}": path.read_bytes() for path in ASSETS.iterdir()}
    for name, words in generated():
        if name in wanted:
            raise BuildError(f"docs/{name} is generated: remove the file")
        wanted[name] = words.encode()
    files = {PROJECT / "docs" / name: content for name, content in wanted.items()}
    files[PROJECT / CONFIG.name] = CONFIG.read_bytes()
    for path in PROJECT.glob("docs/**/*"):
        if path.is_file() and path not in files:
            path.unlink()
    for path, content in files.items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _on_the_site(page: bytes) -> bytes:
    """Return a page whose links to a section of `CLONES_PAGE` lead to the generated page itself."""

    def link(found: re.Match[str]) -> str:
        name = f"reference/{found[2]}.md"
        if name not in PAGES:
            raise BuildError(f"docs/{CLONES_PAGE}#{found[2]}: there is no page docs/{name}")
        return f"({found[1]}{name})"

    return re.sub(rf"\(((?:\.\./)*){re.escape(CLONES_PAGE)}#([a-z-]+)\)", link, page.decode()).encode()


def nav_pages(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of a nav, in its order."""
    for entry in nav:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(target, str):
                yield target
            else:
                yield from nav_pages(target)


def zensical(command: str) -> list[str]:
    """Return the command line of Zensical. Its working directory must be PROJECT."""
    return [sys.executable, "-m", "zensical", command]
