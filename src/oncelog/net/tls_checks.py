"""Check new certificates before a listener uses them: handshakes in memory, without a connection.

Source: Kafka's `SslFactory.CertificateEntries` and `SslEngineValidator`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oncelog.net.tls_files import ServerTlsFiles, TlsFileError

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL. Without it, the name in an expired certificate cannot be read."""
MOST_BYTES = 16 * 1024 * 1024
"""The largest file of certificates that AlterConfigs accepts."""
_STEPS = 10
"""More than the messages of a handshake."""


def check_paths(files: ServerTlsFiles) -> None:
    """Raise TlsFileError if a path is no file of a reasonable size: a client has sent it, and a device never ends."""
    for store in (files.key, files.chain, files.trust):
        if store is None or store.path is None:
            continue
        path = Path(store.path)
        try:
            is_usable = path.is_dir() or (path.is_file() and path.stat().st_size <= MOST_BYTES)
        except (OSError, ValueError):  # `Store.read` reports it
            continue
        if not is_usable and path.exists():
            raise store.error(f"it must be a file of at most {MOST_BYTES} bytes")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None = None) -> ssl.SSLObject:
    """Return the client's side of a complete handshake. Raises ssl.SSLError.

    Both sides check what the other presents, as their contexts require.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(_STEPS):
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
        if not waiting:
            return ends[0]
    raise ssl.SSLError("the handshake does not end")


def names_of(server: ssl.SSLContext) -> dict[str, Any] | None:
    """Return the certificate of a listener in use. None if it has only TLS 1.2 and requires a client's certificate."""
    try:
        return _presented(server)
    except TlsFileError:
        return None


def certificate_of(files: ServerTlsFiles) -> dict[str, Any]:
    """Return the certificate that a server presents, as `ssl.SSLSocket.getpeercert()`. Raises TlsFileError."""
    return _presented(replace(files, clients=ssl.CERT_NONE, versions=frozenset(), ciphers="").load())


def _presented(server: ssl.SSLContext) -> dict[str, Any]:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    try:
        binary = handshake(server, client).getpeercert(binary_form=True)
        assert binary is not None
        client.verify_mode = ssl.CERT_REQUIRED  # Python decodes only what is verified, here by the certificate itself
        client.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
        client.load_verify_locations(cadata=binary)
        return dict(handshake(server, client).getpeercert() or {})
    except ssl.SSLError as error:
        raise TlsFileError(f"no client can connect with the new certificate: {error.reason or error}") from None


def check_names(old: Mapping[str, Any], new: Mapping[str, Any], *, dn_changes: bool, san_changes: bool) -> None:
    """Raise TlsFileError if a certificate has another name than the former one, or lacks some of its host names.

    `dn_changes` and `san_changes` allow this.
    """
    if not dn_changes and old["subject"] != new["subject"]:
        raise TlsFileError(
            "the name in the new certificate is another one (ssl.allow.dn.changes=true allows this)"
            f": {_text(old['subject'])} became {_text(new['subject'])}"
        )
    missing = set(old.get("subjectAltName", ())) - set(new.get("subjectAltName", ()))
    if not san_changes and missing:
        names = ", ".join(sorted(f"{kind}:{value}" for kind, value in missing))
        raise TlsFileError(f"the new certificate lacks {names} (ssl.allow.san.changes=true allows this)")


def check_between(server: ssl.SSLContext, client: ssl.SSLContext, host: str, who: str) -> None:
    """Raise TlsFileError unless a broker can connect to another one. `who` says which of them is new."""
    try:
        handshake(server, client, host)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or error
        raise TlsFileError(f"brokers could not connect to each other: {who}: {reason}") from None


def _text(subject: Any) -> str:
    return ",".join(f"{key}={value}" for part in subject for key, value in part)
