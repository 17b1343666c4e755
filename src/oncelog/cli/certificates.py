"""Create and check the certificates of `oncelog up --secure`. Needs the package cryptography."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = datetime.timedelta(days=3652)
"""How long an authority is valid. A server's certificate ends with it: its key is in the same directory."""
CLOCK_SKEW = datetime.timedelta(hours=1)
"""Certificates begin this much earlier, because the clocks of other machines may be slow."""

_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class CertificateError(Exception):
    """A file cannot be used. The message says why, without the name of the file."""


class Pair:
    """A certificate and its key. The constructor raises CertificateError."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Parse both from PEM."""
        try:
            self.certificate = x509.load_pem_x509_certificate(certificate)
        except ValueError:
            raise CertificateError("it has no certificate as PEM") from None
        try:
            found = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError):  # TypeError: it is encrypted
            raise CertificateError("it has no private key as PEM") from None
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise CertificateError("its key is not one that --secure creates")
        self.key = found
        if found.public_key() != self.certificate.public_key():
            raise CertificateError("certificate and key do not belong together")

    @property
    def begins(self) -> datetime.datetime:
        """The first time at which the certificate is valid."""
        return self.certificate.not_valid_before_utc

    @property
    def ends(self) -> datetime.datetime:
        """The last time at which the certificate is valid."""
        return self.certificate.not_valid_after_utc

    def certificate_pem(self) -> bytes:
        """Return the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """Return the key as PEM (PKCS 8), without a password."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def issued(self, other: Pair) -> bool:
        """Return whether this authority has signed the other certificate."""
        try:
            other.certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def names(self) -> set[str]:
        """Return the host names and addresses for which the certificate is valid."""
        try:
            found = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, ValueError):
            return set()
        addresses = found.get_values_for_type(x509.IPAddress)
        return {*found.get_values_for_type(x509.DNSName), *map(str, addresses)}


def new_authority(now: datetime.datetime) -> Pair:
    """Return an authority with a name of its own, valid from `now`."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"oncelog authority {secrets.token_hex(4)}")
    builder = _builder(name, name, key, now - CLOCK_SKEW, now + LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
    return _signed(builder, key, key)


def new_server(authority: Pair, names: Iterable[str], now: datetime.datetime) -> Pair:
    """Return a certificate for these host names and addresses, which is valid as long as the authority.

    Raises CertificateError if a name is no host name.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject
    builder = _builder(_name("oncelog broker"), issuer, key, max(now - CLOCK_SKEW, authority.begins), authority.ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage("digital_signature"), critical=True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(both, critical=False)
    hosts = [_host(name) for name in sorted(names)]
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    own = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    return _signed(builder.add_extension(identifier, critical=False), key, authority.key)


def written(name: str) -> str:
    """Return a host name or address as a certificate has it: without the zone of an address, and in ASCII.

    Raises CertificateError if it is no host name.
    """
    try:
        return str(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        pass
    try:
        return (name if name.isascii() else name.encode("idna").decode()).lower()
    except UnicodeError:
        raise CertificateError(f"{name!r} is no host name") from None


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{each: each in allowed for each in _USAGES})


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Pair:
    certificate = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate, encoded)
