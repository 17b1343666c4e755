"""`oncelog faults`: run the proxy that causes faults on demand."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import click

from oncelog.cli.common import BROKERS_OPTIONS, BROKERS_VARIABLE, DEFAULT_BROKERS
from oncelog.cli.lazy import examples
from oncelog.cli.log_format import note

if TYPE_CHECKING:
    from oncelog.faults.proxy import FaultProxy

CONNECT_S = 5.0
"""How long the command tries to reach a broker for its remark."""
RELEASE = signal.SIGUSR1
STOP = 0
LAST_RELEASE_S = 1.0
"""How long the end of the command waits for a release that came just before it."""
HELP = """Run a proxy that causes faults between Kafka clients and brokers.

The proxy forwards requests to the brokers at -b, and to the other brokers of their cluster, of oncelog or of Apache
Kafka. Connect clients to the address that the command prints: BROKERS=HOST:PORT. The command prints a line on stderr
for each fault, and for each request to which a rule with pass applies.

A rule is ACTION API[:NUMBERS] [KEY=VALUE ...]. The actions:

\b
  lose-request   the request is lost, and the connection closes
  lose-answer    the request arrives, but its response is lost
  cut            the request arrives, and the connection closes at once
  hold           the connection closes, and the request arrives later
                 (for=2s, or when the command gets SIGUSR1)
  delay          the request and the next ones arrive later (for=200ms)
  duplicate      the request arrives twice
  error          the proxy answers with an error (code=NOT_LEADER_OR_FOLLOWER,
                 for=1s: it answers later, while the next requests arrive)
  error-after    the request takes effect, but the response is an error
  silence        the request is lost. The connection stays open, but gets no
                 more responses
  pass           the request arrives, and no later rule applies to it

A time has a unit: ms, s or m. API is a name of Kafka's protocol, such as Produce, InitProducerId or EndTxn, or * for
all. A wrong name prints the list of all names. `--rule 'pass *'` prints each request.

Numbers (3, 2-5, 4-, 1,3) count the requests that match API and filters, from 1. The filters are client=, broker=,
topic=, partition=, group= and transactional-id=. The first rule with a fault for a request applies."""


@click.command(
    help=HELP,
    epilog=examples(
        "oncelog faults --rule 'lose-answer Produce:1'",
        "oncelog faults --rule 'pass *'",
        "oncelog faults -b kafka:9092 --rule 'error Fetch:10- code=NOT_LEADER_OR_FOLLOWER topic=orders'",
    ),
)
@click.option(
    *BROKERS_OPTIONS,
    "brokers",
    metavar="HOST:PORT,...",
    envvar=BROKERS_VARIABLE,
    default=DEFAULT_BROKERS,
    help=f"Brokers to forward to. Default: ${BROKERS_VARIABLE}, or {DEFAULT_BROKERS}.",
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="Address to listen on. Port 0: any free port."
)
@click.option("--rule", "rules", metavar="RULE", multiple=True, help="Cause this fault. Repeatable.")
@click.option(
    "--rules",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with one rule per line, after those of --rule. Lines with # at the start are comments.",
)
def faults(brokers: str, listen: str, rules: tuple[str, ...], path: Path | None) -> None:  # noqa: D103 - HELP
    from oncelog.faults.proxy import FaultProxy

    received: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, RELEASE):
        signal.signal(number, lambda number, _: received.put(number))
    try:
        every_rule = (*rules, *_lines(path))
        proxy = FaultProxy(brokers, *every_rule, listen=listen)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{str(path)!r} is not a text file in UTF-8: {error}") from None
    except ValueError as error:  # a RuleError, or not an address
        raise click.UsageError(str(error)) from None
    _print_faults()
    releases: SimpleQueue[int] = SimpleQueue()
    releasing = threading.Thread(target=_release, args=(proxy, releases), daemon=True)
    with proxy:
        releasing.start()
        click.echo(f"BROKERS={proxy.bootstrap_servers}")
        if not every_rule:
            note("there is no rule, so no request meets a fault; --rule 'pass *' prints each request")
        threading.Thread(target=_note_unreachable, args=(brokers,), daemon=True).start()
        while (signalled := received.get()) == RELEASE:
            releases.put(signalled)
        releases.put(STOP)
        releasing.join(LAST_RELEASE_S)


def _release(proxy: FaultProxy, releases: SimpleQueue[int]) -> None:
    """Release what is held after each signal. A thread of its own waits, so a hanging broker cannot delay the end."""
    with suppress(CancelledError, RuntimeError):  # the proxy has closed
        while releases.get() != STOP:
            answered = proxy.release()
            with suppress(OSError):  # nobody reads stderr any more
                click.echo(f"released held requests; answered: {answered}", err=True)


def _note_unreachable(brokers: str) -> None:
    """Print a remark for each address at which nobody listens. The proxy works as soon as a broker does."""
    for address in brokers.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError as error:
            note(
                f"no broker can be reached at {address.strip()} ({error.strerror or error}); clients reach none either"
            )


def _lines(path: Path | None) -> list[str]:
    """Return the rules in a file. Raises UsageError with the number of a wrong line."""
    from oncelog.faults.rules import Rule, RuleError

    found = []
    for number, line in enumerate([] if path is None else path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if text and not text.startswith("#"):
            try:
                Rule(text)
            except RuleError as error:
                raise click.UsageError(f"{path}, line {number}: {error}") from None
            found.append(text)
    return found


def _print_faults() -> None:
    """Print each fault on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("oncelog.faults")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
