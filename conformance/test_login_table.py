"""Each client logs in by each mechanism that it knows: on one broker, on three, and on Apache Kafka.

A client with a wrong password or token gets an error that says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.conftest import fault, spark
from spark.logins import SPARK
from support.certificates import signed_by
from support.foreign_logins import FOREIGN, log_in
from support.identity_provider import IdentityProvider, key
from support.python_logins import PYTHON
from support.secured_clusters import SecuredOncelogs
from support.secured_kafka import PASSWORD, USER, SecuredKafka
from support.secured_oncelog import SecuredOncelog
from support.token_servers import validator_settings
from support.ways_to_log_in import PROTOCOLS, VALUES, WAYS, Files, Way

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["fault", "spark"]

Secured = SecuredKafka | SecuredOncelog | SecuredOncelogs
SERVERS: dict[str, Callable[[Path, Mapping[str, str]], Secured]] = {
    "apache-kafka": lambda folder, settings: SecuredKafka(folder, settings=settings),
    "oncelog": SecuredOncelog,
    "oncelog-3": SecuredOncelogs,
}
CHOSEN = [name for name in os.environ.get("ONCELOG_TEST_SERVERS", ",".join(SERVERS)).split(",") if name in SERVERS]
REASON = re.compile("authenticat|rejected the login|invalid_token", re.IGNORECASE)
READ = " ".join(["read", *(value.decode() for value in VALUES)])

SILENT = {
    "kafka-python": tuple(mechanism for _, mechanism in WAYS.values()),  # retries until a time-out, and reports that
    "aiokafka": ("OAUTHBEARER",),  # ignores the broker's answer, and fails with its next request
    "franz-go": ("OAUTHBEARER",),  # reports unexpected data in the broker's answer
    "kafkajs": ("OAUTHBEARER",),  # ignores the answer, and reports that the broker closed the connection
}
"""The mechanisms with which a client does not say that its login is wrong. All report some other error."""


class Table:
    """The ways to log in to one server."""

    def __init__(self, server: Secured, folder: Path, known: IdentityProvider, foreign: IdentityProvider) -> None:
        made = server.authority if isinstance(server, SecuredKafka) else server.certificates.authority
        own = signed_by(made, "client")
        ca, both = folder / "ca.pem", folder / "both.pem"
        ca.write_bytes(made.certificate_pem)
        both.write_bytes(own.key_pem() + own.certificate_pem)
        self._files = Files(ca, *own.write(folder, "client"), both)
        self._addresses = server.addresses
        self._known, self._foreign = known, foreign
        self._foreign_outcomes: dict[str, dict[str, str]] = {}

    def way(self, client: str, name: str, *, wrong: bool = False) -> Way:
        """Return a way. With `wrong`, its password is wrong, and its tokens are of a provider that no broker knows."""
        listener, mechanism = WAYS[name]
        words = [client, name, *(["wrong"] if wrong else [])]
        topic = re.sub("[^a-z0-9]+", "-", " ".join(words).lower())
        login = (USER, "wrong", self._foreign) if wrong else (USER, PASSWORD, self._known)
        return Way(topic, self._addresses[listener], PROTOCOLS[listener], mechanism, self._files, *login)

    def wrong(self, client: str, name: str) -> Way | None:
        """Return a wrong login, except for certificates: tests/clients/test_break_in_tls.py has those."""
        return self.way(client, name, wrong=True) if WAYS[name][1] else None

    def foreign(self, client: str) -> dict[str, str]:
        """Return by topic what a program has read with each way, or its error. The program runs once."""
        if client not in self._foreign_outcomes:
            wrong = [way for name in WAYS if (way := self.wrong(client, name))]
            ways = [*(self.way(client, name) for name in WAYS), *wrong]
            self._foreign_outcomes[client] = log_in(client, ways)
        return self._foreign_outcomes[client]


@pytest.fixture(scope="module")
def providers() -> Iterator[tuple[IdentityProvider, IdentityProvider]]:
    """The provider whose keys the brokers know, and another one."""
    with IdentityProvider(key("RSA", "rsa")) as known, IdentityProvider(key("RSA", "foreign")) as foreign:
        known.subject = foreign.subject = USER
        yield known, foreign


@pytest.fixture(scope="module", params=CHOSEN)
def table(
    request: pytest.FixtureRequest,
    providers: tuple[IdentityProvider, IdentityProvider],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("secured")
    mechanisms = dict.fromkeys(mechanism for _, mechanism in WAYS.values() if mechanism)
    settings = {
        "sasl.enabled.mechanisms": ",".join(mechanisms),
        **validator_settings(providers[0].keys_url, "LOGIN", "OPEN"),
    }
    made = SERVERS[request.param](folder, settings)
    yield Table(made, folder, *providers)
    made.stop()


def check_reason(client: str, way: Way, said: str) -> None:
    assert said != "the client was accepted"
    assert REASON.search(said) or way.mechanism in SILENT.get(client, ()), said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", PYTHON)
def test_python(table: Table, client: str, way: str) -> None:
    works, rejected_by = PYTHON[client]
    works(table.way(client, way))
    if wrong := table.wrong(client, way):
        check_reason(client, wrong, rejected_by(wrong))


@pytest.mark.timeout(500)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", FOREIGN)
def test_foreign(table: Table, client: str, way: str) -> None:
    outcomes = table.foreign(client)
    assert outcomes[table.way(client, way).topic] == READ
    if wrong := table.wrong(client, way):
        said = outcomes[wrong.topic]
        assert said.startswith("failed "), said
        check_reason(client, wrong, said)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", SPARK)
def test_spark(table: Table, spark: SparkSession, client: str, way: str) -> None:
    works, rejected_by = SPARK[client]
    works(spark, table.way(client, way))
    if wrong := table.wrong(client, way):
        check_reason(client, wrong, rejected_by(spark, wrong))
