"""Convert delegation tokens and SCRAM users between Apache Kafka's metadata and the tree. All functions block."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from oncelog.broker.logins import readable_credential
from oncelog.cluster import delegation_tokens
from oncelog.cluster.changes import ChangeLog
from oncelog.cluster.kafka_metadata import KafkaMetadata
from oncelog.cluster.users import read_users, update_user
from oncelog.net.sasl_server import ScramCredential
from oncelog.protocol.kinds import SCRAM_MECHANISMS, SCRAM_NAMES
from oncelog.protocol.messages.metadata_records import UserScramCredentialRecord


def take_tokens(changes: ChangeLog, found: KafkaMetadata, logger: logging.Logger, *, enabled: bool) -> None:
    """Replace the tokens, which an interrupted import has left, by those of Kafka. Log which ones are left out.

    `enabled` says whether the broker has `delegation.token.secret.key`.
    """
    usable = []
    for token in found.tokens.values():
        try:
            delegation_tokens.check_importable(token)
        except ValueError as error:
            logger.warning("not importing the delegation token %r: %s", token.token_id, error)
        else:
            usable.append(token)
    delegation_tokens.replace_all(changes, usable)
    if usable and not enabled:
        logger.warning(
            "imported %d delegation tokens, with which nobody can log in without the delegation.token.secret.key that "
            "Kafka has",
            len(usable),
        )


def take_users(changes: ChangeLog, found: KafkaMetadata, logger: logging.Logger) -> None:
    """Replace the SCRAM users, which an interrupted import has left, by those of Kafka. Log which ones are left out."""
    wanted: dict[str, dict[str, str | None]] = {
        user: dict.fromkeys(credentials) for user, credentials in read_users(changes.store).items()
    }
    for (user, number), each in found.credentials.items():
        name = SCRAM_NAMES.get(number)
        if not user or name is None:
            logger.warning("not importing a credential of SCRAM user %r: its mechanism is number %d", user, number)
            continue
        credential = ScramCredential(bytes(each.salt), bytes(each.stored_key), bytes(each.server_key), each.iterations)
        wanted.setdefault(user, {})[name] = credential.encode()
    for user, credentials in wanted.items():
        update_user(changes, user, credentials)


def credential_records(users: Mapping[str, Mapping[str, str]]) -> Iterator[UserScramCredentialRecord]:
    """Yield the records of all credentials. Those that are damaged are logged and omitted."""
    for user, credentials in users.items():
        for name, text in credentials.items():
            found = readable_credential(user, name, text)
            if found is not None:
                yield UserScramCredentialRecord(
                    name=user,
                    mechanism=SCRAM_MECHANISMS[name],
                    salt=found.salt,
                    stored_key=found.stored_key,
                    server_key=found.server_key,
                    iterations=found.iterations,
                )
