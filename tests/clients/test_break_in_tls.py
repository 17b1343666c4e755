"""Nobody gets past TLS: old protocols, weak ciphers, bytes of the wrong kind, and certificates that are not valid."""

from __future__ import annotations

import datetime
import logging
import socket
import ssl
import struct
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from oncelog import Admin
from oncelog.errors import AuthenticationError
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.api_versions import ApiVersionsRequest
from oncelog.protocol.messages.describe_cluster import DescribeClusterRequest
from oncelog.protocol.messages.describe_groups import DescribeGroupsRequest
from support.attacker import Attacker, Call, choose, codes, encoded, plain
from support.certificates import DAY, Pair, authority, signed_by
from support.locked_servers import Locked
from support.processes import wait_until
from support.secured_kafka import PASSWORD, USER

VERSIONS: Call = (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
HOUR = datetime.timedelta(hours=1)


@pytest.fixture(autouse=True)
def check_server(locked: Locked) -> Iterator[None]:
    """After each test, check that another client is served, and that nothing of the attack is left."""
    yield
    locked.check()


def context(locked: Locked, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(locked.ca))
    if own is not None:
        made.load_cert_chain(*own)
    return made


def answered(locked: Locked, listener: str, tls: ssl.SSLContext | None) -> bool:
    """Return whether the server answers a request of a client that connects in this way."""
    try:
        with Attacker(locked.addresses[listener], tls) as attacker:
            return attacker.call(VERSIONS) != [None]
    except (ssl.SSLError, ConnectionError):
        return False


# -- protocols and ciphers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "LOGIN"])
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_old_protocols_are_rejected(locked: Locked, listener: str, version: str) -> None:
    old = context(locked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion[version]
    old.set_ciphers("ALL:@SECLEVEL=0")
    assert not answered(locked, listener, old)


SUITES = {
    "without encryption": (0x0001, 0x0002, 0x003B, 0xC006, 0xC010),
    "for export": (0x0003, 0x0006, 0x0008, 0x000B, 0x0011, 0x0014, 0x0017, 0x0019),
    "RC4": (0x0004, 0x0005, 0xC007, 0xC011),
    "DES": (0x0009, 0x0015, 0x000A, 0xC008, 0xC012),
    "without a certificate": (0x0018, 0x001B, 0x0034, 0x006C, 0x00A6, 0xC015, 0xC018, 0xC019),
    "with a shared key": (0x008C, 0x00A8, 0x002C, 0xC035),
}


def hello(suites: tuple[int, ...]) -> bytes:
    """Return a ClientHello of TLS 1.2 that offers only these suites."""
    offered = struct.pack(f">H{len(suites)}H", 2 * len(suites), *suites)
    extensions = bytes.fromhex("000a0006000400170018" + "000b00020100" + "000d0008000604030401 0201".replace(" ", ""))
    body = b"\x03\x03" + bytes(32) + b"\0" + offered + b"\1\0" + struct.pack(">H", len(extensions)) + extensions
    shake = b"\1" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack(">H", len(shake)) + shake


def answers_hello(locked: Locked, suites: tuple[int, ...]) -> bool:
    """Return whether the server answers with a handshake, not with an alert."""
    with Attacker(locked.addresses["TLS"]) as attacker:
        attacker.write(hello(suites))
        return attacker.some()[:1] == b"\x16"


@pytest.mark.parametrize("what", SUITES)
def test_weak_ciphers_are_rejected(locked: Locked, what: str) -> None:
    assert not answers_hello(locked, SUITES[what])
    assert answers_hello(locked, (*SUITES[what], 0xC02B)), "with a good one, the same hello is answered"


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_present_protocols_are_accepted(locked: Locked, version: str) -> None:
    new = context(locked)
    new.minimum_version = new.maximum_version = ssl.TLSVersion[version]
    assert answered(locked, "TLS", new)


def test_renegotiation_is_rejected(locked: Locked) -> None:
    """`openssl s_client` renegotiates when it reads a line R. It ends with an error if the server refuses."""
    command = ["openssl", "s_client", "-connect", locked.addresses["TLS"], "-tls1_2", "-CAfile", str(locked.ca)]
    done = subprocess.run(command, input="R\n", capture_output=True, text=True, timeout=60, check=False)
    assert "RENEGOTIATING" in done.stderr
    assert done.stderr.count("depth=0") == 1, "there is no second handshake"
    assert locked.name == "apache-kafka" or "no renegotiation" in done.stderr


# -- bytes of the wrong kind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["TLS", "LOGIN", "MUTUAL"])
def test_request_without_tls_gets_no_answer(locked: Locked, listener: str) -> None:
    calls = [VERSIONS] if listener != "LOGIN" else [choose("PLAIN"), plain(USER, PASSWORD), VERSIONS]
    with Attacker(locked.addresses[listener]) as attacker:
        attacker.write(b"".join(map(encoded, calls)))
        attacker.end()
        rest = attacker.rest()
    assert len(rest) < 20, "at most a TLS alert"


@pytest.mark.parametrize("listener", ["OPEN", "PLAINTEXT"])
def test_tls_on_a_listener_without_it_is_rejected(locked: Locked, listener: str) -> None:
    assert not answered(locked, listener, context(locked))


def test_plain_bytes_within_tls_end_the_connection(locked: Locked) -> None:
    """The attacker completes the handshake, then writes to the socket beside it."""
    host, _, port = locked.addresses["LOGIN"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as plain_socket:
        duplicate = plain_socket.dup()
        with context(locked).wrap_socket(plain_socket, server_hostname="localhost") as made:
            with duplicate:
                duplicate.sendall(encoded(VERSIONS))
            try:
                rest = made.recv(65536)
            except (ssl.SSLError, ConnectionError):
                rest = b""
    assert rest == b""


def test_login_needs_the_right_host_name_at_the_client(locked: Locked) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Attacker(locked.addresses["LOGIN"], context(locked), "example.com")


def test_client_that_goes_in_the_middle_of_the_handshake(locked: Locked) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    machine = context(locked).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        machine.do_handshake()
    hello = outgoing.read()
    for size in (1, 5, 6, 50, len(hello) - 1, len(hello)):
        with Attacker(locked.addresses["TLS"]) as attacker:
            attacker.write(hello[:size])


# -- certificates of clients ------------------------------------------------------------------------------------------


def issued(
    issuer: Pair, subject: list[tuple[x509.ObjectIdentifier, str]], *extensions: x509.ExtensionType, own: bool = False
) -> Pair:
    """Create a certificate with this subject. With `own`, its own key signs it."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.subject_name(x509.Name([x509.NameAttribute(*each) for each in subject]))
    builder = builder.issuer_name(issuer.certificate.subject)
    builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
    for each in extensions:
        builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints))
    return Pair(builder.sign(key if own else issuer.key, hashes.SHA256()), key)


def between(issuer: Pair, name: str, length: int | None = None) -> Pair:
    """Create an authority below another one."""
    limits = x509.BasicConstraints(ca=True, path_length=length)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    return issued(issuer, [(NameOID.COMMON_NAME, name)], limits, usage)


CN, OU, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.ORGANIZATION_NAME


def _chain(root: Pair, length: int, path_length: int | None = None) -> list[Pair]:
    chain = [root]
    for number in range(length):
        chain.append(between(chain[-1], f"between {number}", path_length))
    return [issued(chain[-1], [(CN, "client")]), *reversed(chain[1:])]


FOREIGN: dict[str, Callable[[Pair], list[Pair]]] = {
    "expired": lambda root: [signed_by(root, "client", begins=-2 * HOUR, ends=-HOUR)],
    "not yet valid": lambda root: [signed_by(root, "client", begins=HOUR, ends=2 * HOUR)],
    "foreign authority": lambda _: [signed_by(authority("other"), "client")],
    "foreign authority of the same name": lambda _: [signed_by(authority(), "client")],
    "foreign chain with its authority": lambda _: [signed_by(other := authority(), "client"), other],
    "signed by itself": lambda root: [issued(root, [(CN, "client")], own=True)],
    "an authority of its own": lambda _: [authority("client")],
    "signed by a client": lambda root: [issued(leaf := signed_by(root, "leaf"), [(CN, "client")]), leaf],
    "longer chain than the authority allows": lambda root: _chain(root, 2, 0),
    "for servers only": lambda root: [
        issued(root, [(CN, "client")], x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]))
    ],
}


def written(folder: Path, chain: list[Pair]) -> tuple[Path, Path]:
    certificates, key = folder / "client.crt", folder / "client.key"
    certificates.write_bytes(b"".join(each.certificate_pem for each in chain))
    key.write_bytes(chain[0].key_pem())
    return certificates, key


def test_client_without_a_certificate_is_rejected(locked: Locked) -> None:
    assert not answered(locked, "MUTUAL", context(locked))


@pytest.mark.parametrize("what", FOREIGN)
def test_certificate_that_is_not_valid_is_rejected(locked: Locked, what: str, tmp_path: Path) -> None:
    own = written(tmp_path, FOREIGN[what](locked.authority))
    assert not answered(locked, "MUTUAL", context(locked, own))


REASONS: dict[str, set[str]] = {
    "no certificate": {"CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE"},
    "expired": {"CERTIFICATE_EXPIRED", "CERTIFICATE_UNKNOWN"},
    "foreign authority": {"UNKNOWN_CA", "CERTIFICATE_UNKNOWN"},
    "for servers only": {"UNSUPPORTED_CERTIFICATE", "CERTIFICATE_UNKNOWN"},
}
"""The ends of OpenSSL's names for the alerts of our broker, and of Kafka, which mostly says CERTIFICATE_UNKNOWN."""


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("what", REASONS)
def test_alert_says_why_a_certificate_is_rejected(locked: Locked, what: str, version: str, tmp_path: Path) -> None:
    """With TLS 1.3, the client has sent a request when the server rejects its certificate."""
    own = written(tmp_path, FOREIGN[what](locked.authority)) if what in FOREIGN else None
    tls = context(locked, own)
    tls.minimum_version = tls.maximum_version = ssl.TLSVersion[version]
    host, _, port = locked.addresses["MUTUAL"].rpartition(":")
    reason = ""
    with socket.create_connection((host, int(port)), timeout=60) as plain_socket:
        try:
            with tls.wrap_socket(plain_socket, server_hostname="localhost") as made:
                made.sendall(encoded(VERSIONS))
                made.recv(1)
        except ssl.SSLError as error:
            reason = error.reason or ""
    assert any(reason.endswith(f"ALERT_{end}") for end in REASONS[what]), reason


@pytest.mark.parametrize("what", ["no certificate", "expired", "foreign authority"])
def test_clients_say_that_their_certificate_is_rejected(locked: Locked, what: str, tmp_path: Path) -> None:
    ours: dict[str, Any] = {"security_protocol": "SSL", "ssl_ca_location": str(locked.ca)}
    if what in FOREIGN:
        certificate, key = written(tmp_path, FOREIGN[what](locked.authority))
        ours |= {"ssl_certificate_location": str(certificate), "ssl_key_location": str(key)}
    address = locked.addresses["MUTUAL"]
    with pytest.raises(AuthenticationError, match="rejected the client's certificate"), Admin(address, **ours) as admin:
        admin.list_topics()
    options = {name.replace("_", "."): value for name, value in ours.items()}
    errors: list[str] = []
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "rejected",
            "error_cb": lambda error: errors.append(str(error)),
            "logger": logging.getLogger("rejected"),
            **options,
        }
    )
    try:
        wait_until(lambda: consumer.poll(0.1) or any("alert" in text for text in errors), f"the alert: {errors}")
    finally:
        consumer.close()


def test_certificate_of_an_authority_between_is_accepted(locked: Locked, tmp_path: Path) -> None:
    own = written(tmp_path, _chain(locked.authority, 2))
    assert answered(locked, "MUTUAL", context(locked, own))


SUBJECTS: dict[str, tuple[list[tuple[x509.ObjectIdentifier, str]], bool]] = {
    "the rule": ([(OU, "staff"), (CN, "alice")], True),
    "another unit": ([(OU, "guests"), (CN, "mallory")], False),
    "name in the organization": ([(ORG, "x,CN=alice"), (CN, "mallory")], False),
    "name at the end of the organization": ([(ORG, "CN=alice"), (CN, "mallory")], False),
    "unit in the name": ([(CN, "alice,OU=staff")], False),
    "name with an escaped unit": ([(CN, "alice\\,OU=staff")], False),
    "name in capitals": ([(OU, "staff"), (CN, "ALICE")], False),
    "name with a space": ([(OU, "staff"), (CN, " alice")], False),
    "name with a line feed": ([(OU, "staff"), (CN, "alice\n")], False),
    "line feed before the name": ([(OU, "staff"), (CN, "x\nalice")], False),
    "zero byte in the name": ([(OU, "staff"), (CN, "alice\0x")], False),
    "two names": ([(CN, "alice"), (CN, "mallory")], True),
    "e-mail address": ([(NameOID.EMAIL_ADDRESS, "x,CN=alice"), (CN, "mallory")], False),
    "no name": ([], False),
}
"""Subjects of certificates, and whether the rules of `MAPPING` make a super user of them."""


@pytest.mark.parametrize("what", SUBJECTS)
def test_only_the_whole_name_makes_a_super_user(locked: Locked, what: str, tmp_path: Path) -> None:
    subject, is_super = SUBJECTS[what]
    own = written(tmp_path, [issued(locked.authority, subject)])
    asked: Call = (DescribeGroupsRequest(groups=["g"]), 5)
    with Attacker(locked.addresses["MUTUAL"], context(locked, own)) as attacker:
        [found] = attacker.call(asked)
    if found is None:
        assert what in ("line feed before the name", "name with a line feed"), "no rule matches a line feed"
        return
    assert (found.groups[0].error_code != ErrorCode.GROUP_AUTHORIZATION_FAILED) == is_super, found


def test_certificate_is_no_login(locked: Locked, tmp_path: Path) -> None:
    own = written(tmp_path, [issued(locked.authority, [(OU, "staff"), (CN, "alice")])])
    asked: Call = (DescribeClusterRequest(), 0)
    with Attacker(locked.addresses["LOGIN"], context(locked, own)) as attacker:
        assert codes(attacker.call(asked)) == [None]
