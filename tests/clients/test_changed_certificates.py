"""Certificates that AlterConfigs replaces while the broker runs.

The tests run against our broker, or with `ONCELOG_TEST_SERVERS=apache-kafka` against Apache Kafka.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

from oncelog import Admin, errors
from support.attacker import Attacker, choose, codes, plain
from support.certificates import Pair, signed_by
from support.processes import wait_until
from support.secured_kafka import SecuredKafka
from support.secured_oncelog import PASSWORD, USER, SecuredOncelog

HOSTS = ("127.0.0.1", "localhost")
PREFIX = "listener.name.tls."
JAAS_LINE = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_carol="hunter2-carol";'
LOCATION = PREFIX + "ssl.keystore.location"


class Secured:
    """One broker, and its administrator."""

    def __init__(self, folder: Path, *, is_ours: bool) -> None:
        self.folder = folder
        self.is_ours = is_ours
        self._made: Any = SecuredOncelog(folder) if self.is_ours else SecuredKafka(folder)
        self.authority: Pair = self._made.certificates.authority if self.is_ours else self._made.authority
        self._ca = self._made.certificates.ca if self.is_ours else self._made.ca
        self.file = self._made.certificates.broker if self.is_ours else folder / "broker.pem"
        self.bootstrap: str = self._made.addresses["PLAINTEXT"] if self.is_ours else self._made.bootstrap
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._number = 0

    def pair(self, name: str = "broker", *hosts: str) -> Pair:
        return signed_by(self.authority, name, *(hosts or HOSTS))

    def write(self, pair: Pair, path: Path | None = None) -> str:
        """Write key and certificate into a new file, or into this one, and return its path."""
        self._number += 1
        path = path or self.folder / f"new-{self._number}.pem"
        path.write_bytes(pair.key_pem() + pair.certificate_pem)
        return str(path)

    def alter(self, configs: Mapping[str, str | None]) -> None:
        """Set these settings of the broker; None deletes one. Raises KafkaException."""
        changes = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=changes)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def described(self) -> dict[str, ConfigEntry]:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        found: dict[str, ConfigEntry] = self.admin.describe_configs([resource])[resource].result(30)
        return found

    def has_of_its_own(self, name: str, *, stored: bool) -> None:
        """Check whether the broker has a dynamic setting. Kafka shows it a moment after its answer."""

        def shown() -> bool:
            entry = self.described().get(name)
            return entry is not None and entry.source == ConfigSource.DYNAMIC_BROKER_CONFIG.value

        if stored:
            wait_until(shown, "the broker has the setting")
        assert shown() is stored

    def presents(self, number: int, listener: str = "TLS") -> None:
        """Check that a listener presents this certificate. Kafka uses it a moment after its answer."""
        if not self.is_ours:
            wait_until(lambda: self.serial(listener) == number, "the listener presents the certificate")
        assert self.serial(listener) == number

    def serial(self, listener: str = "TLS") -> int:
        """Return the number of the certificate that a listener presents to a new client."""
        context = ssl.create_default_context(cafile=str(self._ca))
        host, _, port = self._made.addresses[listener].partition(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as made,
        ):
            certificate = made.getpeercert()
        assert certificate is not None
        return int(str(certificate["serialNumber"]), 16)

    def logs_in(self, user: str, password: str) -> bool:
        """Return whether a user of PLAIN can log in."""
        with Attacker(self._made.addresses["OPEN"]) as client:
            return codes(client.call(choose("PLAIN"), plain(user, password))) == [0, 0]

    def log(self) -> str:
        return str(self._made.broker.log()) if self.is_ours else ""

    def restart(self) -> None:
        self._made.broker.restart()

    def stop(self) -> None:
        self._made.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    is_ours = os.environ.get("ONCELOG_TEST_SERVERS", "oncelog") == "oncelog"
    made = Secured(tmp_path_factory.mktemp("secured"), is_ours=is_ours)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def certificate(secured: Secured) -> Iterator[int]:
    """Restore the certificate of the start after each test. Return its number."""
    number = secured.serial()
    yield number
    dynamic = ConfigSource.DYNAMIC_BROKER_CONFIG.value
    changed: dict[str, str | None] = {
        name: None for name, entry in secured.described().items() if name.startswith(PREFIX) and entry.source == dynamic
    }
    if changed:
        secured.alter(changed)
    secured.presents(number)


def test_another_file_is_used_for_new_connections(secured: Secured, certificate: int) -> None:
    new = secured.pair()
    path = secured.write(new)
    secured.alter({LOCATION: path})
    secured.presents(new.certificate.serial_number)
    entry = secured.described()[LOCATION]
    assert (entry.value, entry.source) == (path, ConfigSource.DYNAMIC_BROKER_CONFIG.value)
    assert entry.is_read_only  # as in Kafka, which looks for the name without the prefix
    secured.alter({LOCATION: None})
    secured.presents(certificate)


def test_same_path_loads_the_changed_file(secured: Secured) -> None:
    path = secured.write(secured.pair())
    secured.alter({LOCATION: path})
    new = secured.pair()
    secured.write(new, Path(path))
    secured.alter({LOCATION: path})
    secured.presents(new.certificate.serial_number)


def test_certificate_with_more_host_names_is_accepted(secured: Secured) -> None:
    new = secured.pair("broker", *HOSTS, "kafka.example.com")
    secured.alter({"listener.name.login.ssl.keystore.location": secured.write(new)})
    secured.presents(new.certificate.serial_number, "LOGIN")


@pytest.mark.parametrize("kind", ["missing", "damaged", "no key", "other name", "fewer hosts"])
def test_bad_file_is_refused_and_the_old_one_stays(secured: Secured, certificate: int, kind: str) -> None:
    path = secured.folder / "bad.pem"
    content = {
        "missing": None,
        "damaged": b"damaged",
        "no key": secured.pair().certificate_pem,
        "other name": (other := secured.pair("stranger")).key_pem() + other.certificate_pem,
        "fewer hosts": (fewer := secured.pair("broker", "localhost")).key_pem() + fewer.certificate_pem,
    }[kind]
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        secured.alter({LOCATION: str(path)})
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_REQUEST
    secured.presents(certificate)
    assert LOCATION not in secured.described() or secured.described()[LOCATION].value != str(path)


@pytest.mark.parametrize(("name", "broker"), [("ssl.keystore.location", 1), (LOCATION, None)])
def test_settings_that_cannot_change_are_refused(secured: Secured, name: str, broker: int | None) -> None:
    with Admin(secured.bootstrap) as admin, pytest.raises(errors.KafkaError) as caught:
        admin.alter_broker_configs(broker, {name: secured.write(secured.pair())})
    assert "INVALID_REQUEST" in str(caught.value)


def test_client_certificates_cannot_become_required(secured: Secured) -> None:
    """Kafka accepts and shows the setting, but its listener goes on as before. oncelog refuses the setting."""
    change: dict[str, str | None] = {PREFIX + "ssl.client.auth": "required"}
    with refused_by_ours(secured, PREFIX + "ssl.client.auth"):
        secured.alter(change)
    secured.has_of_its_own(PREFIX + "ssl.client.auth", stored=not secured.is_ours)
    assert secured.serial(), "a client without a certificate is served"
    for illegal in ({PREFIX + "ssl.client.auth": "sometimes"}, {"sasl.jaas.config": JAAS_LINE}):
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            secured.alter(illegal)
        assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_REQUEST
        assert "hunter2" not in caught.value.args[0].str() or not secured.is_ours


def test_users_of_a_jaas_line_cannot_change(secured: Secured) -> None:
    """Kafka accepts and stores the line, but checks logins with the one of its start. oncelog refuses the line."""
    name = "listener.name.open.plain.sasl.jaas.config"
    with refused_by_ours(secured, name):
        secured.alter({name: JAAS_LINE})
    try:
        secured.has_of_its_own(name, stored=not secured.is_ours)
        assert secured.logs_in(USER, PASSWORD)
        assert not secured.logs_in("carol", "hunter2-carol")
    finally:
        if not secured.is_ours:
            secured.alter({name: None})


@contextlib.contextmanager
def refused_by_ours(secured: Secured, name: str) -> Iterator[None]:
    """Check that our broker refuses a setting and says where to set it, and that Kafka accepts it."""
    if not secured.is_ours:
        yield
        return
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        yield
    error = caught.value.args[0]
    assert error.code() == confluent_kafka.KafkaError.INVALID_REQUEST
    assert f"cannot be updated dynamically for existing listeners: ['{name}']; set them in" in error.str()
    assert "hunter2" not in error.str()


def test_secret_settings_are_never_shown(secured: Secured) -> None:
    new, secret = secured.pair(), PREFIX + "ssl.keystore.password"
    path = secured.folder / "new.p12"
    path.write_bytes(new.pkcs12(secured.authority, "hunter2-key"))
    secured.alter({secret: "hunter2-key", LOCATION: str(path), PREFIX + "ssl.keystore.type": "PKCS12"})
    secured.presents(new.certificate.serial_number)
    entry = secured.described()[secret]
    assert (entry.value, entry.is_sensitive) == (None, True)
    assert "hunter2-key" not in secured.log()


def test_broker_that_starts_without_the_new_file_uses_the_one_of_its_settings(tmp_path: Path) -> None:
    secured = Secured(tmp_path / "own", is_ours=True)
    try:
        first, new = secured.serial(), secured.pair()
        path = secured.write(new)
        secured.alter({LOCATION: path})
        assert secured.serial() == new.certificate.serial_number
        Path(path).unlink()
        assert secured.serial() == new.certificate.serial_number
        secured.restart()
        assert secured.serial() == first
        assert "ignoring the dynamic TLS settings" in secured.log()
        secured.write(new, Path(path))
        secured.alter({LOCATION: path})
        assert secured.serial() == new.certificate.serial_number
    finally:
        secured.stop()


@pytest.mark.parametrize("kind", ["device", "pipe", "directory"])
def test_path_that_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    secured = Secured(tmp_path / "own", is_ours=True)
    try:
        first = secured.serial()
        os.mkfifo(tmp_path / "pipe")
        path = {"device": Path("/dev/zero"), "pipe": tmp_path / "pipe", "directory": tmp_path}[kind]
        with pytest.raises(confluent_kafka.KafkaException) as caught:
            secured.alter({LOCATION: str(path)})
        assert caught.value.args[0].code() == confluent_kafka.KafkaError.INVALID_REQUEST
        assert secured.serial() == first
    finally:
        secured.stop()


def test_inline_certificate_survives_a_restart(tmp_path: Path) -> None:
    """In Kafka, the listener must have had such a certificate at its start. It also stores the last setting."""
    secured = Secured(tmp_path / "own", is_ours=True)
    try:
        new = secured.pair()
        secured.alter(
            {
                LOCATION: "",
                PREFIX + "ssl.keystore.key": new.key_pem().decode(),
                PREFIX + "ssl.keystore.certificate.chain": new.certificate_pem.decode(),
            }
        )
        secured.presents(new.certificate.serial_number)
        secured.restart()
        secured.presents(new.certificate.serial_number)
        assert "PRIVATE KEY" not in secured.log()
        with pytest.raises(confluent_kafka.KafkaException, match="belong together"):
            secured.alter({PREFIX + "ssl.keystore.certificate.chain": secured.pair().certificate_pem.decode()})
        secured.presents(new.certificate.serial_number)
        assert secured.described()[PREFIX + "ssl.keystore.key"].value is None
    finally:
        secured.stop()
