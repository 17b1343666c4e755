"""Load certificates and keys from PEM or PKCS12, and load them again when their files change."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from oncelog.net.alerts import AlertingContext
from oncelog.net.credentials import Secret
from oncelog.net.threads import in_thread

JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
"""The first bytes of Java's own formats, JKS and JCEKS."""


class TlsFileError(ValueError):
    """Certificates or a key cannot be used; the message names the option and the file, and shows no secret."""


@dataclass(frozen=True, slots=True)
class Store:
    """Certificates or keys, in a file or as PEM text. `option` names the store in errors.

    `password` is that of a PKCS12 file, and `key_password` that of an encrypted key in PEM.
    """

    option: str
    path: str | None = None
    pem: Secret | None = None
    password: Secret | None = None
    key_password: Secret | None = None

    def read(self) -> bytes:
        """Return the content. Raises TlsFileError."""
        if self.path is None:
            assert self.pem is not None
            return self.pem.value.replace("\\n", "\n").encode()
        try:
            return Path(self.path).read_bytes()
        except OSError as error:
            raise self.error(error.strerror or str(error)) from None
        except ValueError:  # the path has a null byte
            raise self.error("it is no path") from None

    def error(self, why: str) -> TlsFileError:
        """Return an error that says why the content cannot be used."""
        if self.path is None:
            return TlsFileError(f"{self.option}: {why}")
        if any(sign in self.path for sign in ("\n", "-----BEGIN", "://")):  # a key or a login, not to be shown
            return TlsFileError(f"{self.option}: it must be the path of a file, not its content or a URL")
        return TlsFileError(f"{self.option} = {self.path!r}: {why}")


class Loadable(Protocol):
    """Files that are loaded as one context, and may change."""

    def stamp(self) -> object:
        """Return a value that changes when a file changes. A file that is missing for a moment counts as a change."""

    def load(self) -> ssl.SSLContext:
        """Return the settings for connections. Raises TlsFileError."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS options of a client. If there is no `chain`, `key` also contains the certificates."""

    trust: Store | None = None
    chain: Store | None = None
    key: Store | None = None
    check_host: bool = True
    versions: frozenset[ssl.TLSVersion] = frozenset()

    def stamp(self) -> object:
        """Return a value that changes when a file changes."""
        return _stamps(self.trust, self.chain, self.key)

    def load(self) -> ssl.SSLContext:
        """Return the settings for connections. Raises TlsFileError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.check_host
        if self.versions:
            context.minimum_version, context.maximum_version = min(self.versions), max(self.versions)
        if self.trust is None:
            context.load_default_certs()
        else:
            _trust(context, self.trust)
        if self.key is not None:
            _present(context, self.key, self.chain)
        return context


@dataclass(frozen=True, slots=True)
class ServerTlsFiles:
    """The TLS options of a listener. If there is no `chain`, `key` also contains the certificates.

    `trust` has the authorities of client certificates. `clients` says whether clients need one. `ciphers` are those of
    TLS 1.2 in OpenSSL's form; empty for OpenSSL's default.
    """

    key: Store
    chain: Store | None = None
    trust: Store | None = None
    clients: ssl.VerifyMode = ssl.CERT_NONE
    versions: frozenset[ssl.TLSVersion] = frozenset()
    ciphers: str = ""

    def stamp(self) -> object:
        """Return a value that changes when a file changes."""
        return _stamps(self.trust, self.chain, self.key)

    def load(self) -> ssl.SSLContext:
        """Return the settings for handshakes. Raises TlsFileError."""
        context = AlertingContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        if self.versions:
            context.minimum_version, context.maximum_version = min(self.versions), max(self.versions)
        if self.ciphers:
            context.set_ciphers(self.ciphers)
        context.verify_mode = self.clients
        if self.clients is not ssl.CERT_NONE:
            if self.trust is None:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
            else:
                _trust(context, self.trust)
        _present(context, self.key, self.chain)
        return context


def check_authorities(option: str, path: str) -> None:
    """Raise TlsFileError if the file has no usable certificates as PEM."""
    store = Store(option, path)
    store.read()
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise store.error(f"no usable certificate ({error.reason or error})") from None


_NEVER = object()
"""The stamp of files that were not loaded yet."""


class ReloadedTls:
    """TLS settings from files that may change while the process runs. The constructor raises TlsFileError."""

    def __init__(self, files: Loadable, logger: logging.Logger) -> None:
        self._files = files
        self._logger = logger
        self._stamp: object = files.stamp()
        self._context = files.load()
        self._loading: asyncio.Task[ssl.SSLContext] | None = None

    def __reduce__(self) -> tuple[type[ReloadedTls], tuple[Loadable, logging.Logger]]:
        return type(self), (self._files, self._logger)  # Spark sends it to its executors, which load their own files

    @property
    def files(self) -> Loadable:
        """The files of new connections. They may have changed since they were loaded."""
        return self._files

    @property
    def in_use(self) -> ssl.SSLContext:
        """The settings of the last connection."""
        return self._context

    def replace(self, files: Loadable) -> None:
        """Load other files for the next connection. If they are unusable, log that and keep the old ones."""
        self._files, self._stamp, self._loading = files, _NEVER, None

    async def context(self) -> ssl.SSLContext:
        """Return the settings for a new connection. If changed files are unusable, log that and keep the old ones."""
        if self._loading is None:
            stamp = self._files.stamp()
            if stamp == self._stamp:
                return self._context
            self._loading = asyncio.ensure_future(in_thread(partial(self._load, self._files)))
            self._loading.add_done_callback(partial(self._end_loading, stamp))
        return await asyncio.shield(self._loading)

    def _load(self, files: Loadable) -> ssl.SSLContext:
        try:
            return files.load()
        except Exception as error:  # noqa: BLE001 - the previous files can still be used
            self._logger.warning("cannot load the changed TLS files, and keeps the previous ones: %s", error)
            return self._context

    def _end_loading(self, stamp: object, loading: asyncio.Task[ssl.SSLContext]) -> None:
        if loading is not self._loading:
            return  # `replace` was called
        self._loading = None
        if not loading.cancelled() and loading.exception() is None:
            self._stamp, self._context = stamp, loading.result()


class OwnTls:
    """The user's own `ssl.SSLContext`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def context(self) -> ssl.SSLContext:
        """Return the user's context."""
        return self._context


_CERTIFICATE = re.compile("-----BEGIN [A-Z0-9 ]*CERTIFICATE-----.*?-----END [A-Z0-9 ]*CERTIFICATE-----", re.DOTALL)
"""A certificate in a PEM file. Between them, authorities write comments in any language, which Python rejects."""


def _stamps(*stores: Store | None) -> tuple[object, ...]:
    return tuple(_stamp(Path(store.path)) for store in stores if store is not None and store.path)


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: the path has a null byte, which `Store.read` reports
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _trust(context: ssl.SSLContext, store: Store) -> None:
    if store.path is not None and Path(store.path).is_dir():  # certificates by hash, as librdkafka accepts them
        context.load_verify_locations(capath=store.path)
        return
    content = store.read()
    if _is_pem(content):
        _require_no_password(store, "ssl.truststore.password")
        text = "\n".join(_CERTIFICATE.findall(content.decode("ascii", errors="replace")))
    else:
        _, chain = _from_pkcs12(store, content)
        text = chain.decode()
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:  # ValueError: there is none
        raise store.error(f"no usable certificate ({getattr(error, 'reason', None) or error})") from None


def _present(context: ssl.SSLContext, key: Store, chain: Store | None) -> None:
    """Load this side's certificate and key from files, because Python's ssl reads nothing else."""
    content = key.read()
    password = key.key_password
    with ExitStack() as files:
        if _is_pem(content):
            _require_no_password(key, "ssl.keystore.password", "; the password of a key is ssl.key.password")
            key_path = key.path or files.enter_context(_file(content))
            chain_path = key_path
            if chain is not None:
                chain_path = chain.path or files.enter_context(_file(chain.read()))
        else:
            password = Secret(secrets.token_hex(16))  # of the key in the file
            key_content, certificates = _from_pkcs12(key, content, password)
            key_path, chain_path = files.enter_context(_file(key_content)), files.enter_context(_file(certificates))
        try:
            context.load_cert_chain(chain_path, key_path, lambda: "" if password is None else password.value)
        except (OSError, ValueError) as error:  # OSError: also ssl.SSLError
            reason = getattr(error, "reason", None) or error
            raise key.error(
                f"cannot load key and certificate ({reason}); check ssl.key.password, and that they belong together"
            ) from None


def _require_no_password(store: Store, option: str, advice: str = "") -> None:
    if store.password is not None:
        raise store.error(f"it is PEM, which has no password of its own{advice}; omit {option}")


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """Yield the path of a file that only this user can read: in memory (Linux), otherwise a temporary one."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
        with open(os.memfd_create("oncelog"), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="oncelog-") as folder:
        path = Path(folder, "store.pem")
        path.touch(0o600)
        path.write_bytes(content)
        yield str(path)


def _is_pem(content: bytes) -> bool:
    return b"-----BEGIN " in content


def _from_pkcs12(store: Store, content: bytes, key_password: Secret | None = None) -> tuple[bytes, bytes]:
    """Return the private key and all certificates of a PKCS12 store as PEM. Raises TlsFileError."""
    if content.startswith(JKS_MAGIC):
        raise store.error(
            "the format JKS is not supported; convert it: keytool -importkeystore -srckeystore OLD.jks "
            "-destkeystore NEW.p12 -deststoretype PKCS12"
        )
    if not content.startswith(b"\x30"):
        raise store.error("it is neither PEM nor PKCS12")
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise store.error("a PKCS12 store needs the package cryptography: pip install 'oncelog[pkcs12]'") from None
    password = store.password or store.key_password
    try:
        found = pkcs12.load_pkcs12(content, None if password is None else password.value.encode())
    except ValueError:
        raise store.error("the password is wrong, or the file is no PKCS12 store") from None
    pem = serialization.Encoding.PEM
    entries = [*([found.cert] if found.cert is not None else []), *found.additional_certs]
    certificates = b"".join(entry.certificate.public_bytes(pem) for entry in entries)
    if key_password is None:
        return b"", certificates
    if found.key is None:
        raise store.error("it has no private key")
    cipher = serialization.BestAvailableEncryption(key_password.value.encode())
    return found.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, cipher), certificates
