"""Each client logs in by each mechanism that it knows: on one broker, on three, and on Apache Kafka.

A client with a wrong password gets an error that says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.certificates import signed_by
from support.secured_clusters import SecuredOncelogs
from support.secured_kafka import PASSWORD, USER, SecuredKafka
from support.secured_oncelog import SecuredOncelog
from support.ways_to_log_in import PROTOCOLS, PYTHON, WAYS, Way

Secured = SecuredKafka | SecuredOncelog | SecuredOncelogs
SERVERS: dict[str, Callable[[Path], Secured]] = {
    "apache-kafka": SecuredKafka,
    "oncelog": SecuredOncelog,
    "oncelog-3": SecuredOncelogs,
}
CHOSEN = [name for name in os.environ.get("ONCELOG_TEST_SERVERS", ",".join(SERVERS)).split(",") if name in SERVERS]
REASON = re.compile("authenticat|rejected the login", re.IGNORECASE)

SILENT = ("kafka-python",)
"""Clients that retry until a time-out, and report only that."""


class Table:
    """The ways to log in to one server."""

    def __init__(self, server: Secured, folder: Path) -> None:
        made = server.authority if isinstance(server, SecuredKafka) else server.certificates.authority
        self._ca = folder / "ca.pem"
        self._ca.write_bytes(made.certificate_pem)
        self._addresses = server.addresses
        self._own = signed_by(made, "client").write(folder, "client")

    def ways(self, client: str, *, wrong: bool = False) -> dict[str, Way]:
        """Return all ways by name. With `wrong`, the password is wrong."""
        password = "wrong" if wrong else PASSWORD
        label = re.sub("[^a-z]+", "-", client.lower())
        return {
            name: Way(
                f"{label}-{name.replace(' ', '-')}", self._addresses[listener], PROTOCOLS[listener], mechanism,
                self._ca, *self._own, USER, password,
            )
            for name, (listener, mechanism) in WAYS.items()
        }  # fmt: skip


@pytest.fixture(scope="module", params=CHOSEN)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("secured")
    made = SERVERS[request.param](folder)
    yield Table(made, folder)
    made.stop()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", PYTHON)
def test_python(table: Table, client: str, way: str) -> None:
    works, rejected_by = PYTHON[client]
    works(table.ways(client)[way])
    wrong = table.ways(client, wrong=True)[way]
    if not wrong.mechanism:
        return  # tests/clients/test_break_in_tls.py has the certificates that are not valid
    said = rejected_by(wrong)
    assert said != "the client was accepted"
    assert REASON.search(said) or client in SILENT, said
