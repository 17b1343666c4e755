"""`oncelog up --secure`: TLS, a login and permissions, without settings of one's own."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence

import click

from oncelog.broker.config.authorizers import STANDARD_AUTHORIZER
from oncelog.broker.config.settings import load
from oncelog.broker.folder_locks import StartError
from oncelog.broker.process import METADATA_FILE, ScramUser
from oncelog.cli.log_format import note
from oncelog.cli.secure_files import (
    AUTHORITY,
    BROKER,
    CLIENT,
    FOLDER,
    MECHANISM,
    USER,
    SecureFiles,
)
from oncelog.net.credentials import Secret

LISTENER = "SASL_SSL"
ADDRESS = "127.0.0.1:9092"
BROKER_USER = "broker"
"""The user as which brokers log in to each other."""
LOCAL = ("localhost", "127.0.0.1", "::1")
_OWN = re.compile(
    r"(advertised\.)?listeners|listener\..*|inter\.broker\.listener\.name|security\.inter\.broker\.protocol"
    r"|ssl\..*|sasl\..*|.*\.sasl\.jaas\.config|authorizer\.class\.name|super\.users|allow\.everyone\..*"
)
_LOGIN_MODULE = "org.apache.kafka.common.security.{}LoginModule required"


def with_own_listener(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the listener of `--secure`. Raises UsageError for settings that contradict it."""
    if taken := sorted(name for name in settings if _OWN.fullmatch(name)):
        raise click.UsageError(
            f"--secure chooses {taken[0]} itself; omit one of them. --host, --port and --advertise set the addresses"
        )
    return {**settings, "listeners": f"{LISTENER}://{ADDRESS}", **_settings(SecureFiles("/"), Secret("-"))}


def secured(
    brokers: Sequence[Mapping[str, str]], data: str, users: Sequence[ScramUser]
) -> tuple[dict[str, str], tuple[ScramUser, ...], SecureFiles]:
    """Create or check the files. Return the settings for all brokers, the users to add, and the files.

    `data` is the data directory, which this process has locked. `users` are those of `--add-scram`. Raises StartError.
    """
    if any(user.name == USER for user in users):
        raise click.UsageError(f"--secure adds the user {USER} itself; choose another name for --add-scram")
    files = SecureFiles(data)
    metadata = os.path.join(data, METADATA_FILE)
    names = {name for settings in brokers for name in _names(settings)}
    files.prepare(names, datetime.datetime.now(datetime.UTC), lambda password: _set_password(metadata, password, files))
    if not _has_password(metadata, files.password.value):
        files.notes.append(
            f"WARNING: {files.path(CLIENT)} has not the present password of user {USER}, so the lines below do not "
            "work. Write the password into the file"
        )
    own = _settings(files, files.broker_password)
    user = ScramUser(USER, {MECHANISM: _credential(files.password.value)})
    return own, (user, *users), files


def lines_for_clients(files: SecureFiles, addresses: str) -> list[str]:
    """Return the lines to print when the brokers are ready: what a client needs, as commands of a shell."""
    return [
        "the broker requires TLS and a login. To connect from a shell:",
        f"export ONCELOG_BROKERS={addresses}",
        f"export ONCELOG_COMMAND_CONFIG={shlex.quote(files.path(CLIENT))}",
        "oncelog topic list",
    ]


def mention_files(settings: Mapping[str, str], data: str) -> None:
    """Print a line if earlier starts had `--secure`, but this one lacks it and has no permissions."""
    if SecureFiles(data).exists() and not load(settings).authorizer_class_name:
        note(
            f"WARNING: {os.path.join(data, FOLDER)} was created by --secure, which this start lacks: clients need no "
            "login and no permission. Add --secure, or delete that directory",
            level="WARNING",
        )


def _settings(files: SecureFiles, password: Secret) -> dict[str, str]:
    """Return the settings of a broker, without its addresses. `password` is that of the brokers."""
    mechanism = f"listener.name.{LISTENER.lower()}.{{}}.sasl.jaas.config"
    plain, scram = _LOGIN_MODULE.format("plain.Plain"), _LOGIN_MODULE.format("scram.Scram")
    own = f'username="{BROKER_USER}" password="{password.value}" user_{BROKER_USER}="{password.value}"'
    return {
        "inter.broker.listener.name": LISTENER,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.path(BROKER),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files.path(AUTHORITY),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        mechanism.format("plain"): f"{plain} {own};",
        mechanism.format("scram-sha-512"): f"{scram};",
        mechanism.format("scram-sha-256"): f"{scram};",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{USER};User:{BROKER_USER}",
    }


def _names(settings: Mapping[str, str]) -> Iterable[str]:
    """Return the host names and addresses by which clients may reach a broker."""
    yield from LOCAL
    yield socket.gethostname()
    for listener in load(settings).client_listeners:
        if listener.advertised_host:
            yield listener.advertised_host
        if listener.host not in ("", "0.0.0.0", "::"):
            yield listener.host


# -- the user in the metadata ---------------------------------------------------------------------------------------


def _credential(password: str) -> str:
    from oncelog.net.sasl import MIN_ITERATIONS, new_salt
    from oncelog.net.sasl_server import scram_credential

    return scram_credential(MECHANISM, password, new_salt(), MIN_ITERATIONS).encode()


def _has_password(metadata: str, password: str) -> bool:
    """Return whether the user has this password, or does not exist, or cannot be read. The broker reports the last."""
    from oncelog.cluster.store import StoreError
    from oncelog.cluster.store_sqlite import SqliteStore
    from oncelog.cluster.users import read_users
    from oncelog.net.sasl_server import ScramCredential, scram_credential

    if not os.path.exists(metadata):
        return True
    try:
        with contextlib.closing(SqliteStore(metadata)) as store:
            found = read_users(store).get(USER)
        if found is None:
            return True
        stored = ScramCredential.decode(found.get(MECHANISM, ""))
    except (StoreError, OSError):
        return True
    except ValueError:  # the user has another mechanism, or a damaged credential
        return False
    return scram_credential(MECHANISM, password, stored.salt, stored.iterations) == stored


def _set_password(metadata: str, password: str, files: SecureFiles) -> None:
    """If the user exists, give it another password. Raises StartError."""
    from oncelog.cluster.changes import ChangeLog
    from oncelog.cluster.store import StoreError
    from oncelog.cluster.store_sqlite import SqliteStore
    from oncelog.cluster.users import read_users, update_user
    from oncelog.protocol.errors import ProtocolError

    if not os.path.exists(metadata):
        return
    try:
        with contextlib.closing(SqliteStore(metadata)) as store:
            before = read_users(store).get(USER)
            if before is not None:
                others: dict[str, str | None] = dict.fromkeys(before)
                update_user(ChangeLog(store), USER, {**others, MECHANISM: _credential(password)})
                files.notes.append(f"the user {USER} existed, and has a new password")
    except (StoreError, ProtocolError) as error:
        raise StartError(f"--secure cannot change the password of user {USER} in {metadata}: {error}") from error
