"""The files of `oncelog up --secure`, in the directory `secure` of the data: create, check and renew them."""

from __future__ import annotations

import datetime
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from oncelog.broker.folder_locks import StartError
from oncelog.net.credentials import Secret, parse_jaas
from oncelog.net.properties import parse_properties

if TYPE_CHECKING:
    from oncelog.cli.certificates import Pair

FOLDER = "secure"
AUTHORITY, AUTHORITY_KEY = "authority.pem", "authority.key"
BROKER, BROKER_PASSWORD = "broker.pem", "broker.password"
CLIENT = "client.properties"
FILES = (AUTHORITY, AUTHORITY_KEY, BROKER, BROKER_PASSWORD, CLIENT)
USER, MECHANISM = "admin", "SCRAM-SHA-512"
EXPIRES_SOON = datetime.timedelta(days=90)
_NEW = f"the next start creates new files, and clients need the new {AUTHORITY} and {CLIENT}"
LARGEST = 1 << 20
"""No file of the directory has more bytes than this."""


class SecureFiles:
    """The directory. The constructor reads no file."""

    def __init__(self, data: str) -> None:
        """`data` is the absolute path of the data directory."""
        self.folder = Path(data, FOLDER)
        self.password = Secret("")
        """The password of the user, after `prepare`."""
        self.broker_password = Secret("")
        """The password with which brokers log in to each other, after `prepare`."""
        self.notes: list[str] = []
        """What the user should know about the files, after `prepare`."""

    def path(self, name: str) -> str:
        """Return the absolute path of a file."""
        return str(self.folder / name)

    def exists(self) -> bool:
        """Return whether there is a directory with files, or another file in its place."""
        return os.path.lexists(self.folder)

    def prepare(self, names: Iterable[str], now: datetime.datetime, set_password: Callable[[str], None]) -> None:
        """Create the files, or check those that exist. `names` are the host names and addresses of the brokers.

        If the certificate of the brokers lacks a name, replace it. New files have a new password: `set_password` gives
        it to the user, if the user exists already. Raises StartError.
        """
        try:
            from oncelog.cli import certificates
        except ImportError:
            raise StartError("--secure needs the package cryptography: pip install 'oncelog[secure]'") from None
        try:
            wanted = {certificates.written(name) for name in names}
        except certificates.CertificateError as error:
            raise StartError(f"--secure cannot create a certificate: {error}") from error
        try:
            if not self.exists():
                self._create(wanted, now, set_password)
            self._check(wanted, now)
        except OSError as error:
            raise StartError(f"--secure cannot use {error.filename or self.folder}: {error.strerror}") from error

    # -- create ------------------------------------------------------------------------------------------------

    def _create(self, names: Iterable[str], now: datetime.datetime, set_password: Callable[[str], None]) -> None:
        """Create all files, or none if this process is killed."""
        from oncelog.cli.certificates import new_authority, new_server

        authority, password = new_authority(now), secrets.token_urlsafe(24)
        server = new_server(authority, names, now)
        contents = {
            AUTHORITY: authority.certificate_pem(),
            AUTHORITY_KEY: authority.key_pem(),
            BROKER: server.key_pem() + server.certificate_pem(),
            BROKER_PASSWORD: f"{secrets.token_urlsafe(32)}\n".encode(),
            CLIENT: self._client(password),
        }
        unfinished = self.folder.with_name(f"{FOLDER}.new")
        if unfinished.is_symlink() or not unfinished.is_dir():
            unfinished.unlink(missing_ok=True)
        else:
            shutil.rmtree(unfinished)
        unfinished.mkdir(0o700)
        for name, content in contents.items():
            _write(unfinished / name, content)
        set_password(password)  # if this process is killed now, the next start creates other files
        unfinished.rename(self.folder)
        _sync(self.folder.parent)
        self.notes.append(f"created an authority, a certificate, and the user {USER}, in {self.folder}")

    def _client(self, password: str) -> bytes:
        """Return the content of the client's file: options that Kafka's clients and tools have."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return format_properties(
            {
                "security.protocol": "SASL_SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.path(AUTHORITY),
                "sasl.mechanism": MECHANISM,
                "sasl.jaas.config": f'{module} required username="{USER}" password="{password}";',
            }
        )

    # -- check -------------------------------------------------------------------------------------------------

    def _check(self, names: set[str], now: datetime.datetime) -> None:
        """Check all files, and replace the certificate of the brokers if it lacks a name. Raises StartError."""
        from oncelog.cli.certificates import CertificateError, Pair, new_server

        self._require_private()
        at = AUTHORITY
        try:
            authority = Pair(self._read(AUTHORITY), self._read(AUTHORITY_KEY))
            at = BROKER
            server = Pair(self._read(BROKER), self._read(BROKER))
        except CertificateError as error:
            raise self._damaged(at, str(error)) from error
        if not authority.issued(server):
            raise self._damaged(BROKER, f"its certificate is not signed by {AUTHORITY}")
        self._require_valid(authority, now)
        if missing := sorted(names - server.names()):
            made = new_server(authority, names, now)
            self._replace(BROKER, made.key_pem() + made.certificate_pem())
            self.notes.append(f"created a new certificate in {self.path(BROKER)}, because it is now for {missing[0]}")
        self.broker_password = Secret(self._read(BROKER_PASSWORD).decode(errors="replace").strip())
        if len(self.broker_password.value) < 16:
            raise self._damaged(BROKER_PASSWORD, "it has no password")
        self._check_client()

    def _require_private(self) -> None:
        """Require all files, which only this user may read. Raises StartError."""
        if self.folder.is_symlink() or not self.folder.is_dir():
            raise StartError(f"{self.folder} must be a directory with the files of --secure; move it away")
        missing = [name for name in FILES if not (self.folder / name).is_file()]
        if missing:
            raise StartError(f"{', '.join(missing)} missing in {self.folder}. {self._remedy()}")
        for path in (self.folder, *map(self.folder.joinpath, FILES)):
            status = path.stat()
            if status.st_uid != os.geteuid():
                raise StartError(f"{path} belongs to another user of this machine (id {status.st_uid})")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise StartError(
                    f"other users of this machine may read {path}. If nobody has, run `chmod -R go= {self.folder}`"
                )

    def _require_valid(self, authority: Pair, now: datetime.datetime) -> None:
        path, day = self.path(AUTHORITY), f"{authority.ends:%Y-%m-%d}"
        if now < authority.begins:
            raise StartError(f"{path} is not valid before {authority.begins:%Y-%m-%d %H:%M} UTC; check the clock")
        if now >= authority.ends:
            raise StartError(f"{path} has expired on {day}. Delete {self.folder}: {_NEW}")
        if authority.ends - now < EXPIRES_SOON:
            self.notes.append(f"WARNING: {path} expires on {day}. Stop the broker, and delete {self.folder}: {_NEW}")

    def _check_client(self) -> None:
        """Read the user's password. If the data directory was moved, correct the path in the file."""
        content = self._read(CLIENT)
        try:
            found = parse_properties(content.decode())
            login = parse_jaas(found.get("sasl.jaas.config", ""), MECHANISM)
        except ValueError as error:
            raise self._damaged(CLIENT, f"sasl.jaas.config: {error}") from error
        if login.get("username") != USER or not login.get("password"):
            raise self._damaged(CLIENT, f"sasl.jaas.config has not the user {USER} and a password")
        self.password = Secret(login["password"])
        if found.get("ssl.truststore.location") != self.path(AUTHORITY):
            found["ssl.truststore.location"] = self.path(AUTHORITY)
            self._replace(CLIENT, format_properties(found))
            self.notes.append(f"changed ssl.truststore.location in {self.path(CLIENT)} to {self.path(AUTHORITY)}")

    def _damaged(self, name: str, why: str) -> StartError:
        return StartError(f"{self.path(name)} is damaged, or from another directory: {why}. {self._remedy()}")

    def _remedy(self) -> str:
        return f"Restore it from a backup, or delete {self.folder}: {_NEW}"

    def _read(self, name: str) -> bytes:
        with (self.folder / name).open("rb") as file:
            return file.read(LARGEST)

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self.folder / f"{name}.new"
        temporary.unlink(missing_ok=True)
        _write(temporary, content)
        temporary.replace(self.folder / name)
        _sync(self.folder)


def format_properties(values: Mapping[str, str]) -> bytes:
    """Return a file in Java's format. Java reads it as ISO 8859-1, so other characters are escaped."""
    lines = [f"{_escaped(key)}={_escaped(value)}\n" for key, value in values.items()]
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    units = text.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    escaped = "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only this user may read, and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
