"""The command line: `scripts/bounce --help`."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from stories.bounces.aim import TARGETS
from stories.bounces.run import CLIENTS, SIGNALS, Plan, Run


def words(allowed: tuple[str, ...]) -> object:
    """Return a parser of names that are separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        for name in found:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(allowed)}")
        return found

    return parse


def at_least(least: float, kind: type[int] | type[float]) -> object:
    """Return a parser of numbers."""

    def parse(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not number >= least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}")
        return number

    return parse


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bounce",
        description="Kill (-9), suspend and stop brokers at random moments while clients write with acks=all, with and "
        "without transactions. The exit status is 1 if an acknowledged record is lost, duplicated, out of order or at "
        "another offset, if a transaction is visible in part, or if the brokers do not recover.",
    )
    parser.add_argument("--brokers", type=at_least(1, int), default=3, help="number of brokers (3)")
    parser.add_argument("--client", type=words(CLIENTS), default=CLIENTS[:2], help=f"some of {','.join(CLIENTS)}")
    faults = tuple(SIGNALS)
    parser.add_argument("--faults", type=words(faults), default=faults, help=f"some of {','.join(faults)} (all)")
    roles = "some of any,leader,controller,coordinator: the role of the broker that a fault hits (all)"
    parser.add_argument("--targets", type=words(TARGETS), default=TARGETS, help=roles)
    parser.add_argument("--seconds", type=at_least(0, float), default=60, help="how long faults occur (60)")
    parser.add_argument("--rate", type=at_least(1, float), default=400, help="records per second of each writer (400)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10_000), help="of the faults")
    secured = "three brokers with TLS, logins and permissions, also between each other"
    parser.add_argument("--secured", action="store_true", help=secured)
    parser.add_argument("--keep", action="store_true", help="keep data and logs")
    given = parser.parse_args()
    if given.secured and "java" in given.client:
        parser.error("--secured runs without --client java: TransactionalMessageCopier cannot log in")
    return given


def main() -> None:
    """Run once, and print the verdicts."""
    given = arguments()
    plan = Plan(
        given.seed,
        given.client,
        given.faults,
        given.targets,
        given.brokers,
        given.seconds,
        rate=given.rate,
        secured=given.secured,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="oncelog-bounce-"))
    good = False
    began = time.monotonic()
    print(f"seed {plan.seed}", flush=True)
    try:
        with Run(plan, folder, lambda text: print(text, flush=True)) as run:
            verdicts = run.go()
        for topic, verdict in verdicts.items():
            print(f"{topic}: {verdict}")
        good = not run.problems and all(verdict.good for verdict in verdicts.values())
        print(*run.problems, sep="\n", end="\n" if run.problems else "")
        done, hit = (", ".join(f"{what} {number}" for what, number in sorted(c.items())) for c in (run.done, run.hit))
        faults = f"{done} of {hit}" if done else "no fault"
        print(f"{'right' if good else 'WRONG'} after {faults}, {time.monotonic() - began:.0f} s")
    finally:
        if good and not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"data and logs: {folder}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
