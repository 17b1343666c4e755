"""Make the runs of the figures, and draw them into `docs/images`: `python -m docs_site.figures [NAME ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

from docs_site.build import WRITTEN
from docs_site.figures.leader import leader_checks
from docs_site.figures.producer import client_flow, lost_answer
from docs_site.figures.replicas import replicas
from docs_site.figures.transaction import transaction

FIGURES: dict[str, Callable[[], str]] = {
    "lost-answer": partial(lost_answer, idempotence=False),
    "lost-answer-idempotence": partial(lost_answer, idempotence=True),
    "producer-flow": client_flow,
    "leader-checks": leader_checks,
    "replica-offsets": replicas,
    "transaction": transaction,
}
"""The function that returns each figure as SVG, by the name of its file."""


def main() -> int:
    """Draw the figures that the command line names, or all. Return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/docs --figures", description="Draw the figures from new runs.")
    parser.add_argument("name", nargs="*", choices=[[], *FIGURES], help="default: all")
    for name in parser.parse_args().name or FIGURES:
        path = WRITTEN / "images" / f"{name}.svg"
        path.write_text(FIGURES[name]())
        print(path.relative_to(WRITTEN.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
