"""Certificates for tests: an authority, and certificates that it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM)

    def key_pem(self, password: str | None = None) -> bytes:
        """Return the private key as PEM (PKCS#8)."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password))

    def write(self, folder: Path, name: str, password: str | None = None) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key, and return their paths."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate_pem)
        key.write_bytes(self.key_pem(password))
        return certificate, key

    def pkcs12(self, authority: Pair, password: str) -> bytes:
        """Return key and chain as PKCS12."""
        return pkcs12.serialize_key_and_certificates(
            b"key", self.key, self.certificate, [authority.certificate], _encryption(password)
        )


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())


def authority(name: str = "test authority") -> Pair:
    """Create an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key, -DAY, 30 * DAY)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(
        x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True
    )
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def signed_by(
    issuer: Pair,
    name: str = "localhost",
    *hosts: str,
    begins: datetime.timedelta = -DAY,
    ends: datetime.timedelta = DAY,
) -> Pair:
    """Create a certificate for `hosts` (default: `name`), valid from now + `begins` to now + `ends`."""
    key = ec.generate_private_key(ec.SECP256R1())
    issued_by = issuer.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = _builder(name, str(issued_by), key, begins, ends)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts or (name,)]), False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False
    )
    return Pair(builder.sign(issuer.key, hashes.SHA256()), key)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, begins: datetime.timedelta, ends: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
