"""Build the site, or serve it while pages change: `python -m documentation [--serve]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from documentation.build import PROJECT, ROOT, BuildError, build, collect, zensical


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation site.")
    parser.add_argument("--serve", action="store_true", help="serve the pages of docs/ on a local port, until Ctrl-C")
    if parser.parse_args().serve:
        return serve()
    began = time.monotonic()
    try:
        site = build()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{site.relative_to(ROOT)}/index.html: built in {time.monotonic() - began:.1f} s")
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
