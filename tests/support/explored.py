"""Remember that the sink's protocol has passed its explorer (`scripts/explorer`), which takes minutes.

The tests of FILE depend on nothing but what they import: they use no server, no fixture and no compiled module. RECORD
has a digest of these files and of Python's version. As long as the digest is right, `.ci/run` leaves them out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from support.imported_files import SourceTree, digest

ROOT = Path(__file__).resolve().parents[2]
FILE = "tests/spark/test_explorer.py"
RECORD = "tests/spark/explorer/passed.txt"
HEADER = f"# {FILE} has passed with the files of this digest. Only scripts/explorer writes here.\n"


def current_digest(root: Path) -> str:
    """Return the digest of all that FILE depends on."""
    python = ".".join(map(str, sys.version_info[:2]))
    return digest(SourceTree(root).closure(root / FILE, imports_only=True), root, [f"Python {python}"])


def has_passed(root: Path) -> bool:
    """Return whether the record has the current digest."""
    record = root / RECORD
    return record.exists() and record.read_text() == f"{HEADER}{current_digest(root)}\n"


def main(arguments: Sequence[str]) -> int:
    """Print pytest's option that leaves FILE out, if it may (`choose`), print the digest, or write a digest."""
    parser = argparse.ArgumentParser(prog="support.explored")
    parser.add_argument("command", choices=("choose", "digest", "record"))
    parser.add_argument("digest", nargs="?", help="the digest from before the run")
    options = parser.parse_args(arguments)
    now = current_digest(ROOT)
    if options.command == "digest":
        print(now)
    elif options.command == "record":
        if options.digest != now:
            print("a file was edited during the run, so nothing is recorded", file=sys.stderr)
            return 1
        (ROOT / RECORD).write_text(f"{HEADER}{now}\n")
    elif has_passed(ROOT):
        print(f"{FILE} has passed with these files, so it does not run; see {RECORD}", file=sys.stderr)
        print(f"--ignore={FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
