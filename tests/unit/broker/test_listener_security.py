"""The settings of TLS and logins: for all listeners, for one, and what is refused."""

from __future__ import annotations

import datetime
import ssl
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from oncelog.broker.config.certificate_names import distinguished_name, principal_mapper
from oncelog.broker.config.errors import ConfigError
from oncelog.broker.config.listener_security import openssl_name
from oncelog.broker.config.settings import load
from oncelog.net.credentials import Secret

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="{}" user_alice="{}";'
BASE = {
    "listeners": "PLAINTEXT://127.0.0.1:1,TLS://127.0.0.1:2,LOGIN://127.0.0.1:3",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL",
    "ssl.keystore.location": "/broker.pem",
    "ssl.truststore.location": "/ca.pem",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": PLAIN.format("pw1", "pw2"),
}


def test_listener_has_its_own_settings_and_those_of_the_broker() -> None:
    config = load({**BASE, "listener.name.tls.ssl.client.auth": "required", "listener.name.tls.ssl.key.password": "k"})
    tls, login = config.security["TLS"], config.security["LOGIN"]
    assert tls.tls is not None
    assert login.tls is not None
    assert (tls.tls.clients, login.tls.clients) == (ssl.CERT_REQUIRED, ssl.CERT_NONE)
    assert tls.tls.key.key_password is not None
    assert login.tls.key.key_password is None
    assert (tls.mechanisms, login.mechanisms) == ((), ("PLAIN", "SCRAM-SHA-512"))
    assert login.users is not None
    assert login.users["alice"].value == "pw2"
    assert "PLAINTEXT" not in config.security
    assert config.warnings == ()


def test_no_secret_is_shown() -> None:
    config = load({**BASE, "ssl.key.password": "pw3", "listener.name.tls.ssl.truststore.password": "pw4"})
    assert "pw" not in repr(config)
    assert "pw" not in str(config.given)


def test_broker_logs_in_at_others_with_the_user_of_the_line() -> None:
    config = load({**BASE, "inter.broker.listener.name": "login", "sasl.mechanism.inter.broker.protocol": "PLAIN"})
    peer = config.security["LOGIN"].peer_login
    assert peer is not None
    assert (peer.mechanism, peer.username, peer.password.value) == ("PLAIN", "b", "pw1")
    assert config.security["TLS"].peer_login is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"ssl.keystore.location": ""}, "listener TLS needs ssl.keystore.location"),
        ({"ssl.keystore.key": "PEM"}, "ssl.keystore.location and ssl.keystore.key: set one of them"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "Kerberos is not supported; set it to some of PLAIN"),
        ({"sasl.enabled.mechanisms": "EXTERNAL"}, "supported are PLAIN"),
        ({"sasl.enabled.mechanisms": ","}, "needs sasl.enabled.mechanisms"),
        ({"listener.name.login.plain.sasl.jaas.config": "x"}, "one module, and a semicolon at its end"),
        ({"ssl.enabled.protocols": "TLSv1"}, "must be TLSv1.2, TLSv1.3 or both"),
        ({"ssl.client.auth": "maybe"}, "must be one of none, requested, required"),
        ({"ssl.principal.mapping.rules": "RULE:("}, "must be DEFAULT or RULE:"),
        ({"ssl.principal.mapping.rules": "RULE:(/x/"}, "is no pattern"),
        ({"inter.broker.listener.name": "LOGIN"}, "sasl.mechanism.inter.broker.protocol must be one of"),
        (
            {"inter.broker.listener.name": "TLS", "security.inter.broker.protocol": "SSL"},
            "set inter.broker.listener.name or security.inter.broker.protocol, not both",
        ),
        ({"security.inter.broker.protocol": "TLSv1"}, "must be one of PLAINTEXT, SSL"),
        ({"sasl.server.max.receive.size": "0"}, "must be at least 1"),
    ],
)
def test_invalid_setting_is_refused_with_one_sentence(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **changed})
    assert sentence in str(caught.value)
    assert "pw" not in str(caught.value)


def test_plain_without_its_users_is_refused() -> None:
    settings = {name: text for name, text in BASE.items() if "jaas" not in name}
    with pytest.raises(ConfigError, match=r"PLAIN needs listener.name.login.plain.sasl.jaas.config"):
        load(settings)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=alice,O=shop", "CN=alice,O=shop"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=serviceuser,OU=ServiceUsers,O=Unknown", "serviceuser"),
        ("RULE:^CN=(.*?), *OU=(.*?)$/$1@$2/L, DEFAULT", "CN=Duke,OU=JavaSoft", "duke@javasoft"),
        ("RULE:^CN=(.*?),.*$/$1/U", "CN=duke,OU=x", "DUKE"),
        ("RULE:^nothing$/x/,DEFAULT", "CN=alice", "CN=alice"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "O=x,CN=Alice", "alice"),
    ],
)
def test_rules_make_the_user(rules: str, name: str, user: str) -> None:
    assert principal_mapper(rules)(name) == user


def test_name_without_a_rule_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"no rule of ssl.principal.mapping.rules matches"):
        principal_mapper("RULE:^CN=a$/x/")("CN=b")


def subject(*parts: list[x509.NameAttribute[str]]) -> bytes:
    """Return a certificate (DER) with this subject. Each part has one attribute or several."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(x509.Name([])).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def named(value: str, kind: x509.ObjectIdentifier = NameOID.COMMON_NAME, **options: Any) -> x509.NameAttribute[str]:
    return x509.NameAttribute(kind, value, **options)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("alice", "alice"),
        ("x,CN=admin", r"x\,CN\=admin"),
        ("a=b#c", r"a\=b\#c"),
        ('<"+;>', r"\<\"\+\;\>"),
        ("back\\slash", r"back\\slash"),
        ("  a  b  ", r"\ \ a  b\ \ "),
        ("   ", r"\ \ \ "),
        ("a\0b", r"a\00b"),
        ("a\nb", "a\nb"),
        ("\u00fc\u2603", "\u00fc\u2603"),
    ],
)
def test_value_of_a_name_is_escaped_as_in_java(value: str, text: str) -> None:
    """The expected texts are those of Java 21's `X500Principal.getName`."""
    assert distinguished_name(subject([named(value)])) == f"CN={text}"


def test_distinguished_name_is_as_java_prints_it() -> None:
    parts = (
        [named("DE", NameOID.COUNTRY_NAME)],
        [named("Shop", NameOID.ORGANIZATION_NAME)],
        [named("a", NameOID.ORGANIZATIONAL_UNIT_NAME), named("b")],
        [named("x", NameOID.USER_ID)],
        [named("y", NameOID.DOMAIN_COMPONENT)],
    )
    assert distinguished_name(subject(*parts)) == "DC=y,UID=x,CN=b+OU=a,O=Shop,C=DE"
    assert distinguished_name(subject([named("a@b", NameOID.EMAIL_ADDRESS)])) == "1.2.840.113549.1.9.1=#1603614062"
    universal = named("ab", _type=_ASN1Type.UniversalString)
    assert distinguished_name(subject([universal])) == "CN=#1c080000006100000062"
    assert distinguished_name(subject()) == ""


def test_damaged_certificate_is_rejected() -> None:
    whole = subject([named("alice")])
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="the certificate is damaged"):
            distinguished_name(whole[:size])


def test_value_of_another_attribute_cannot_be_a_super_user() -> None:
    mapped = principal_mapper("RULE:^.*CN=(admin)(,.*)?$/$1/,RULE:^CN=([^,]*).*$/$1/")
    name = distinguished_name(subject([named("x,CN=admin", NameOID.ORGANIZATION_NAME)], [named("mallory")]))
    assert mapped(name) == "mallory"


def test_suites_have_openssl_s_names() -> None:
    pairs = {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384": "ECDHE-RSA-AES256-SHA384",
    }
    assert {suite: openssl_name(suite) for suite in pairs} == pairs
    known = {cipher["name"] for cipher in ssl.create_default_context().get_ciphers()}
    assert {"ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"} <= known


def test_secret_is_false_if_it_is_empty() -> None:
    assert not Secret("")
    assert Secret("x")
