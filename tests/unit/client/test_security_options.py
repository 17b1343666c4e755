"""The options of TLS and logins: names, conflicts, files, and no secret in any text."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, Consumer, Producer
from oncelog.client.consumer.options import consumer_options
from oncelog.client.options import cluster_options
from oncelog.client.producer.options import producer_options
from oncelog.client.security.options import SECURITY
from oncelog.errors import ConfigError
from oncelog.net import tls_files
from oncelog.net.credentials import parse_jaas
from oncelog.net.security import Security
from oncelog.net.tls_files import ReloadedTls, Store, TlsFiles
from support.certificates import Pair, authority, signed_by

LOGGER = logging.getLogger(__name__)

B = {"bootstrap_servers": "localhost:9092"}
SECRET = "hunter2"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def security(**given: Any) -> Security:
    found: Security = cluster_options(consumer_options(None, {**B, **given}))["security"]
    return found


def first_message(found: Security) -> bytes:
    assert found.login is not None
    return asyncio.run(found.login.begin()).first()


@pytest.mark.parametrize(
    "given",
    [
        {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": SECRET},
        {"sasl.mechanisms": "plain", "sasl.username": "alice", "sasl.password": SECRET},
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{PLAIN} required username="alice" password="{SECRET}";'},
        {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f"kafkashaded.{PLAIN} required username=alice\n password='{SECRET}' ;",
        },
    ],
)
def test_spellings_of_a_login(given: dict[str, Any]) -> None:
    found = security(**{"security.protocol": "sasl_ssl", **given})
    assert repr(found) == "Security(SASL_SSL, PLAIN)"
    assert first_message(found) == b"\0alice\0hunter2"


def test_scram_takes_a_new_nonce_each_time() -> None:
    found = security(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-512", sasl_username="a", sasl_password="b"
    )
    assert first_message(found) != first_message(found)


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
PEM = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
URL = "sasl_oauthbearer_token_endpoint_url"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sasl_username": "a", "sasl_password": SECRET}, ("sasl.username", "SASL_SSL")),
        ({"ssl_ca_location": "/x"}, ("ssl.truststore.location", "security.protocol = SSL")),
        ({"security_protocol": "SSL", "ssl_ca_location": "/x\0"}, ("ssl.truststore.location", "it is no path")),
        ({"security_protocol": "SASL_PLAINTEXT"}, ("sasl.mechanism is missing", "SCRAM-SHA-512")),
        ({**SASL, "sasl_username": "a"}, ("sasl.password is missing",)),
        ({**SASL, "sasl_password": SECRET}, ("sasl.username is missing",)),
        ({**SASL, "sasl_password": 5}, ("sasl_password: it must be a string",)),
        (
            {**SASL, "sasl_tokenauth": True, "sasl_username": "a", "sasl_password": SECRET},
            ("sasl.tokenauth", "SCRAM-SHA-512"),
        ),
        ({**SASL, "sasl_mechanisms": "PLAIN"}, ("sasl_mechanism and sasl_mechanisms", "two names")),
        ({**SASL, "sasl_jaas_config": f'{PLAIN} required password="{SECRET}"'}, ("sasl.jaas.config", "semicolon")),
        ({**SASL, "sasl_jaas_config": f'{SCRAM} required password="{SECRET}";'}, ("ScramLoginModule is for", "PLAIN")),
        (
            {**SASL, "sasl_username": "a", "sasl_jaas_config": f'{PLAIN} required username="b" password="{SECRET}";'},
            ("sasl.username and sasl.jaas.config",),
        ),
        (OAUTH, ("sasl_oauth_token_provider", "token.endpoint.url")),
        ({**OAUTH, URL: "ftp://x"}, ("ftp://x", "https")),
        ({**OAUTH, URL: "https://x"}, ("client.credentials.client.id",)),
        ({**OAUTH, URL: f"https://me:{SECRET}@x"}, ("no user name and password",)),
        (
            {
                **OAUTH,
                URL: "https://x",
                "sasl_oauthbearer_client_id": "me",
                "sasl_oauthbearer_client_secret": SECRET,
                "https_ca_location": "/no/such",
            },
            ("https.ca.location = '/no/such'", "No such"),
        ),
        ({**OAUTH, "sasl_oauth_token_provider": SECRET}, ("function that returns a token",)),
        (
            {"security_protocol": "SSL", "ssl_ca_location": "/no/such"},
            ("ssl.truststore.location = '/no/such'", "No such"),
        ),
        ({"security_protocol": "SSL", "ssl_truststore_password": SECRET}, ("ssl.truststore.password needs",)),
        ({"security_protocol": "SSL", "ssl_key_location": "/x"}, ("ssl.key.location needs ssl.certificate.location",)),
        ({"security_protocol": "SSL", "ssl_key_password": SECRET}, ("ssl.key.password needs",)),
        ({"security_protocol": "SSL", "ssl_ca_pem": SECRET}, ("ssl.truststore.certificates", "neither PEM nor PKCS12")),
        ({"security_protocol": "SSL", "ssl_keystore_location": PEM}, ("ssl.keystore.location", "path of a file")),
        (
            {"security_protocol": "SSL", "ssl_key_location": PEM, "ssl_certificate_location": PEM},
            ("location: it must be the path of a file",),
        ),
        ({"security_protocol": "SSL", "ssl_enabled_protocols": "TLSv1"}, ("TLSv1.2",)),
        ({"security_protocol": "SSL", "ssl_context": 1}, ("ssl.SSLContext",)),
    ],
)
def test_error_names_the_option_and_no_secret(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        security(**given)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert SECRET not in f"{caught.value!r}"


TYPED = {
    name for name in SECURITY if name.endswith(("protocol", "protocols", "type", "mechanism", "algorithm", "class"))
}
PUBLIC = {"sasl_username", "sasl_login_read_timeout_ms", "sasl_oauthbearer_header_urlencode", "ssl_context"}


def errors_and_reprs(given: dict[str, Any]) -> str:
    try:
        found = security(**given)
    except ConfigError as error:
        return f"{error!r} {error.__cause__!r}"
    return f"{found!r} {found.tls!r} {found.login!r}"


@pytest.mark.parametrize("name", sorted(set(SECURITY) - TYPED - PUBLIC))
def test_secret_in_any_option_is_not_shown(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A program may set the wrong option. Only a path is shown."""
    sasl = {"security_protocol": "SASL_SSL", "sasl_username": "a", "sasl_password": "b"}
    bases = [
        {"security_protocol": "SSL"},
        {**sasl, "sasl_mechanism": "PLAIN"},
        {**sasl, "sasl_mechanism": "OAUTHBEARER"},
    ]
    canaries = [PEM, f"https://me:{SECRET}@host", *([] if name.endswith("_location") else [SECRET])]
    for base in bases:
        for canary in canaries:
            assert SECRET not in errors_and_reprs({**base, name: canary}) + caplog.text


def test_changed_key_that_cannot_be_loaded_is_logged_without_its_password(
    tmp_path: Path, ours: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    certificate, key = signed_by(ours, "client").write(tmp_path, "client", SECRET)
    files = {"ssl_key_location": str(key), "ssl_certificate_location": str(certificate)}
    found = security(security_protocol="SSL", ssl_key_password=SECRET, **files)
    first = context_of(found)
    key.write_text(PEM)
    assert context_of(found) is first
    assert "cannot load the changed TLS files" in caplog.text
    assert SECRET not in caplog.text


def test_no_secret_in_the_repr_of_options_and_clients() -> None:
    given = {**SASL, "sasl_username": "a", "sasl_password": SECRET}
    options = producer_options(None, {**B, **given})
    assert SECRET not in repr(options)
    assert SECRET not in repr(cluster_options(options))


@pytest.mark.parametrize("kind", [Producer, Consumer, Admin])
def test_every_client_finds_a_wrong_configuration_at_once(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.mechanism is missing"):
        kind("localhost:9092", {"security.protocol": "SASL_SSL"})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            'a.PlainLoginModule required username="a\\"b" password="c\\\\d;=";',
            {"username": 'a"b', "password": "c\\d;="},
        ),
        ("PlainLoginModule required;", {}),
        ("PlainLoginModule REQUIRED serviceName = kafka ;\n", {"serviceName": "kafka"}),
        ('PlainLoginModule required password=";";', {"password": ";"}),
    ],
)
def test_jaas(line: str, found: dict[str, str]) -> None:
    assert parse_jaas(line, "PLAIN") == found


@pytest.mark.parametrize(
    "line",
    ["", ";", "x", 'PlainLoginModule required a="b;', "PlainLoginModule required a b;", "Other required;", "= = ;"],
)
def test_malformed_jaas(line: str) -> None:
    with pytest.raises(ValueError, match=r"must be|quote|not supported"):
        parse_jaas(line, "PLAIN")


@pytest.fixture(scope="module")
def ours() -> Pair:
    return authority()


def context_of(found: Security) -> ssl.SSLContext:
    assert found.tls is not None
    return asyncio.run(found.tls.context())


def names(context: ssl.SSLContext) -> list[Any]:
    return [dict(pair[0] for pair in each["subject"])["commonName"] for each in context.get_ca_certs()]


def test_stores_in_every_form(tmp_path: Path, ours: Pair) -> None:
    client = signed_by(ours, "client")
    certificate, key = client.write(tmp_path, "client", SECRET)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ours.certificate_pem)
    both = tmp_path / "both.pem"
    both.write_bytes(client.key_pem() + client.certificate_pem)
    store = tmp_path / "client.p12"
    store.write_bytes(client.pkcs12(ours, SECRET))
    trusted = ours.certificate_pem.decode()
    for given in (
        {"ssl_ca_location": str(ca), "ssl_certificate_location": str(certificate), "ssl_key_location": str(key),
         "ssl_key_password": SECRET},
        {"ssl.truststore.location": str(ca), "ssl.truststore.type": "PEM", "ssl.keystore.location": str(both),
         "ssl.keystore.type": "PEM"},
        {"ssl.truststore.location": str(ca), "ssl.keystore.location": str(store), "ssl.keystore.password": SECRET},
        {"ssl.truststore.certificates": trusted, "ssl.keystore.key": client.key_pem(SECRET).decode(),
         "ssl.keystore.certificate.chain": client.certificate_pem.decode(), "ssl.key.password": SECRET},
    ):  # fmt: skip
        found = security(security_protocol="SSL", **given)
        assert names(context_of(found)) == ["test authority"]
        assert context_of(found).check_hostname
    ca.write_bytes("Autorité\n".encode() + ours.certificate_pem + "ñ".encode("latin-1"))
    assert names(context_of(security(security_protocol="SSL", ssl_ca_location=str(ca)))) == ["test authority"]
    for option, path in (("ssl_keystore_location", store), ("ssl_truststore_location", store)):
        with pytest.raises(ConfigError, match="password is wrong"):
            security(security_protocol="SSL", **{option: str(path), f"{option.rpartition('_')[0]}_password": "no"})
    wrong = {"ssl_certificate_location": str(certificate), "ssl_key_location": str(key)}
    with pytest.raises(ConfigError, match=r"ssl\.key\.location = .*check ssl\.key\.password"):
        security(security_protocol="SSL", **wrong)
    both.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(ConfigError, match=r"JKS.*keytool"):
        security(security_protocol="SSL", ssl_truststore_location=str(both))


def test_system_authorities_are_the_default_and_the_name_check_can_be_disabled() -> None:
    found = security(security_protocol="SSL", **{"ssl.endpoint.identification.algorithm": ""})
    context = context_of(found)
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_own_context(tmp_path: Path) -> None:
    own = ssl.create_default_context()
    found = security(security_protocol="SSL", ssl_context=own)
    assert context_of(found) is own
    with pytest.raises(ConfigError, match=r"ssl_context and ssl\.truststore\.location"):
        security(security_protocol="SSL", ssl_context=own, ssl_ca_location="/x")


def test_renewed_files_are_loaded_for_the_next_connection(
    tmp_path: Path, ours: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ours.certificate_pem)
    found = Security("SSL", ReloadedTls(TlsFiles(trust=Store("ssl.truststore.location", str(ca))), LOGGER))
    first = context_of(found)
    assert context_of(found) is first
    ca.write_bytes(b"half a fi")
    assert context_of(found) is first, "a file that is being written does not end the client's trust"
    assert context_of(found) is first
    assert len(caplog.records) == 1
    fresh = tmp_path / "fresh"
    fresh.write_bytes(authority("another").certificate_pem)
    os.replace(fresh, ca)
    assert names(context_of(found)) == ["another"]
    ca.unlink()
    assert names(context_of(found)) == ["another"]


def test_changed_files_are_loaded_once_and_do_not_stop_the_event_loop(
    tmp_path: Path, ours: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key derivation of a PKCS12 file may take long, and all blocking clients of a process share a loop."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ours.certificate_pem)
    tls = ReloadedTls(TlsFiles(trust=Store("ssl.truststore.location", str(ca))), LOGGER)
    load, loads = TlsFiles.load, []

    def slow(files: TlsFiles) -> ssl.SSLContext:
        loads.append(files)
        time.sleep(0.3)
        return load(files)

    monkeypatch.setattr(TlsFiles, "load", slow)
    ca.write_bytes(authority("another").certificate_pem)

    async def main() -> None:
        first = asyncio.ensure_future(tls.context())
        ticks = 0
        while not first.done():
            await asyncio.sleep(0.01)
            ticks += 1
            if ticks == 3:
                second = asyncio.ensure_future(tls.context())
        assert ticks > 5
        assert names(await second) == names(await first) == ["another"]

    asyncio.run(main())
    assert len(loads) == 1


def test_keys_are_not_copied_to_temporary_files(tmp_path: Path, ours: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed while it loads a key would leave the copy."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    client = signed_by(ours, "client")
    certificate, key = client.write(tmp_path, "client")
    both, store = tmp_path / "both.pem", tmp_path / "client.p12"
    both.write_bytes(client.key_pem() + client.certificate_pem)
    store.write_bytes(client.pkcs12(ours, SECRET))
    inline = {"ssl_keystore_key": client.key_pem().decode()}
    for given in (
        {"ssl_key_location": str(key), "ssl_certificate_location": str(certificate)},
        {"ssl_key_location": str(key), "ssl_keystore_certificate_chain": client.certificate_pem.decode()},
        {"ssl_keystore_location": str(both)},
        {**inline, "ssl_certificate_location": str(certificate)},
        {"ssl_keystore_location": str(store), "ssl_keystore_password": SECRET},
    ):
        assert context_of(security(security_protocol="SSL", **given))


def test_temporary_files_of_keys_are_removed(tmp_path: Path, ours: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on systems without files in memory."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    client = signed_by(ours, "client")
    inline = {"ssl_keystore_key": client.key_pem().decode(), "ssl_ca_pem": ours.certificate_pem.decode()}
    chain = {"ssl_keystore_certificate_chain": client.certificate_pem.decode()}
    assert context_of(security(security_protocol="SSL", **inline, **chain))
    assert list(tmp_path.iterdir()) == []
    before = os.umask(0)
    try:
        with tls_files._file(b"key") as path:
            assert Path(path).stat().st_mode & 0o777 == 0o600
            assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_password_of_the_store_is_rejected_for_pem(tmp_path: Path, ours: Pair) -> None:
    """As in Kafka. PEM has a password of the key only, and an error about that would name the wrong option."""
    both = tmp_path / "both.pem"
    both.write_bytes(signed_by(ours, "client").key_pem("right") + ours.certificate_pem)
    given = {"ssl_keystore_location": str(both), "ssl_keystore_password": SECRET, "ssl_key_password": "right"}
    with pytest.raises(ConfigError, match=r"it is PEM.*ssl\.key\.password.*omit ssl\.keystore\.password") as caught:
        security(security_protocol="SSL", **given)
    assert SECRET not in str(caught.value)
    given = {"ssl_truststore_location": str(both), "ssl_truststore_password": SECRET}
    with pytest.raises(ConfigError, match=r"it is PEM.*omit ssl\.truststore\.password"):
        security(security_protocol="SSL", **given)
