"""Build the site, or serve it while pages change: `python -m docs_site [--serve | --print NAME]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from docs_site.build import PROJECT, ROOT, BuildError, build, collect, zensical
from docs_site.reference import generated


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation site.")
    parser.add_argument("--serve", action="store_true", help="serve the pages of docs/ on a local port, until Ctrl-C")
    parser.add_argument("--print", metavar="NAME", help="print one generated page or drawing, for example apis")
    options = parser.parse_args()
    if options.serve:
        return serve()
    if options.print is not None:
        return show(options.print)
    began = time.monotonic()
    try:
        site = build()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{site.relative_to(ROOT)}/index.html: built in {time.monotonic() - began:.1f} s")
    return 0


def show(name: str) -> int:
    """Print a generated page, or a drawing whose name ends with .svg."""
    pages = {Path(path).name.removesuffix(".md"): text for path, text in generated()}
    if name not in pages:
        print(f"there is no page {name!r}; there are {', '.join(pages)}", file=sys.stderr)
        return 2
    print(pages[name], end="")
    return 0


def serve() -> int:
    """Serve the site. Copy pages of `docs/` when they change; generated pages stay as they are at the start."""
    collect()
    with subprocess.Popen(zensical("serve"), cwd=PROJECT) as server:
        try:
            while server.poll() is None:
                time.sleep(1)
                collect()
        except KeyboardInterrupt:
            server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
