"""Servers with TLS, logins and ACLs, to break in to: ours, and Apache Kafka.

The user `alice` may do everything, and so may clients of the listener PLAINTEXT. `bob` may do only what was granted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from support.certificates import Pair
from support.permissions import STANDARD_AUTHORIZER
from support.processes import wait_until
from support.secured_kafka import GUEST, GUEST_PASSWORD, PASSWORD, USER, SecuredKafka
from support.secured_oncelog import SecuredOncelog, add_scram_user
from support.wire import Wire

MAPPING = r"RULE:^CN=([a-z]+),OU=staff$/$1/,RULE:^.*CN=(alice)(,.*)?$/$1/,RULE:^(.*)$/guest-$1/"
"""The principals of client certificates. The second rule finds the name anywhere in the subject."""
USERS = {USER: PASSWORD, GUEST: GUEST_PASSWORD}
_SETTINGS = {
    "listener.name.mutual.ssl.principal.mapping.rules": MAPPING,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "connection.failed.authentication.delay.ms": "20",
}


class Locked(Protocol):
    """A server with the listeners PLAINTEXT, TLS, MUTUAL (SSL), LOGIN (SASL_SSL) and OPEN (SASL_PLAINTEXT)."""

    name: str
    addresses: dict[str, str]
    authority: Pair
    ca: Path

    def check(self) -> None:
        """Check that the server still serves, has no connection of a test left, and has logged no traceback."""

    def stop(self) -> object:
        """Stop the server."""


def _serves(server: Locked) -> None:
    """Check that a client can log in, and that its requests are answered."""
    with Wire(server.addresses["OPEN"], login=(USER, PASSWORD)) as wire:
        assert wire.versions


class LockedOncelog(SecuredOncelog):
    """Our broker."""

    name = "oncelog"

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        line = "org.apache.kafka.common.security.plain.PlainLoginModule required "
        line += " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
        guarded = {
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:ANONYMOUS;User:{USER}",
            "plain.sasl.jaas.config": f"{line};",
        }
        super().__init__(folder, {**_SETTINGS, **guarded, **(settings or {})})
        add_scram_user(self.addresses["PLAINTEXT"], GUEST, GUEST_PASSWORD)
        self.authority, self.ca = self.certificates.authority, self.certificates.ca
        self._pid = self.broker.pid
        self._sockets = 0
        wait_until(self._settled, "the connections of the set-up are closed")

    def sockets(self) -> int:
        """Return the number of the broker's sockets."""
        folder = Path(f"/proc/{self._pid}/fd")
        found = 0
        for each in folder.iterdir():
            try:
                found += os.readlink(each).startswith("socket:")
            except FileNotFoundError:
                continue
        return found

    def _settled(self) -> bool:
        """Return whether the number of sockets is that of the listeners: it no longer falls below an earlier one."""
        before, self._sockets = self._sockets, self.sockets()
        return before == self._sockets

    def check(self) -> None:
        assert self.broker.pid == self._pid
        _serves(self)
        wait_until(lambda: self.sockets() <= self._sockets, "no connection is left")
        assert "Traceback" not in self.broker.log()
        assert " ERROR " not in self.broker.log()


class LockedKafka(SecuredKafka):
    """Apache Kafka."""

    name = "apache-kafka"

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, settings={**_SETTINGS, **(settings or {})})
        self.addresses["PLAINTEXT"] = self.bootstrap

    def check(self) -> None:
        assert self.runs()
        _serves(self)


LOCKED: dict[str, Callable[..., Locked]] = {"oncelog": LockedOncelog, "apache-kafka": LockedKafka}
