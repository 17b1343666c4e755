"""Store delegation tokens in the versioned tree. Reads and writes block.

Each token is a node `/delegation_token/tokens/ID`, as in Kafka's ZooKeeper tree (`DelegationTokenManagerZk`). It has no
secret: the password of a token is an HMAC of its id, and the key of the HMAC is in the settings of the brokers.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec

from oncelog.cluster.changes import ChangeLog, cannot_write
from oncelog.cluster.store import (
    BadVersionError,
    Create,
    Delete,
    MetadataStore,
    Node,
    NoNodeError,
    Operation,
    Set,
    StoreError,
    read_children,
)

PARENTS = ("/delegation_token", "/delegation_token/tokens")
"""The fixed nodes, in the order of their creation. The last one is the parent of all tokens."""
_TOKENS = PARENTS[-1]
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = logging.getLogger("oncelog.cluster")


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token (Kafka's `TokenInformation`). Principals are texts such as `User:alice`, times are ms since 1970."""

    token_id: str
    owner: str
    """The principal of a client that logs in with the token."""
    requester: str
    renewers: tuple[str, ...]
    """The principals that may renew the token, besides the owner."""
    issued_ms: int
    max_ms: int
    """The token cannot be renewed beyond this time."""
    expires_ms: int

    def expired(self, now_ms: int) -> bool:
        """Return whether the token has expired."""
        return self.max_ms < now_ms or self.expires_ms < now_ms

    def managed_by(self, principal: str) -> bool:
        """Return whether a principal may see, renew and expire the token without further permissions."""
        return principal == self.owner or principal in self.renewers


_Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _TokenNode(msgspec.Struct, rename="camel"):
    """Version 3 of Kafka's format. The principals are percent-encoded."""

    token_id: str
    owner: str
    renewers: list[str]
    issue_timestamp: _Time
    max_timestamp: _Time
    expiry_timestamp: _Time
    token_requester: str = ""
    version: int = 3


def read_all(store: MetadataStore) -> dict[str, DelegationToken]:
    """Return all tokens by id. A token that cannot be read is logged and omitted."""
    found = {name: _decode(name, node) for name, node in read_children(store, _TOKENS).items()}
    return {name: token for name, token in found.items() if token is not None}


def read_changed(
    store: MetadataStore, known: Mapping[str, DelegationToken], ids: Sequence[str]
) -> dict[str, DelegationToken]:
    """Return the tokens after changes of these ids."""
    after = dict(known)
    for token_id, node in zip(ids, store.get_many([_path(each) for each in ids]), strict=True):
        after.pop(token_id, None)
        token = None if node is None else _decode(token_id, node)
        if token is not None:
            after[token_id] = token
    return after


def touched(paths: Iterable[str]) -> list[str]:
    """Return the ids of the tokens that changes touched."""
    return [path[len(_TOKENS) + 1 :] for path in paths if path.startswith(f"{_TOKENS}/")]


def check_importable(token: DelegationToken) -> None:
    """Raise ValueError if a token of another system could not be read again."""
    if not _ID.fullmatch(token.token_id):
        raise ValueError("its id has other characters than Kafka's")
    for principal in (token.owner, token.requester, *token.renewers):
        _principal(_quoted(principal))


def replace_all(log: ChangeLog, tokens: Iterable[DelegationToken]) -> None:
    """Delete all tokens, and store these. Raises REQUEST_TIMED_OUT."""
    for token_id in log.store.children(_TOKENS):
        log.write([Delete(_path(token_id))], _path(token_id))
    for token in tokens:
        create(log, token)


def create(log: ChangeLog, token: DelegationToken) -> None:
    """Store a new token. Raises REQUEST_TIMED_OUT."""
    try:
        log.write([Create(_path(token.token_id), _encode(token))], _path(token.token_id))
    except StoreError as error:
        raise cannot_write("delegation token", error) from error


def change(
    log: ChangeLog, token_id: str, wanted: Callable[[DelegationToken], DelegationToken | None]
) -> DelegationToken | None:
    """Replace a token by `wanted(token)`, or remove it if that is None. Return the former token.

    Return None if the token does not exist. `wanted` may raise, and may be called more than once. Raises
    REQUEST_TIMED_OUT.
    """
    path = _path(token_id)
    while True:
        try:
            node = log.store.get(path)
            before = _decode(token_id, node)
            if before is None:
                return None
            after = wanted(before)
            if after != before:
                operation: Operation = Delete(path, node.version)
                if after is not None:
                    operation = Set(path, _encode(after), node.version)
                log.write([operation], path)
        except NoNodeError:
            return None
        except BadVersionError:
            continue  # another writer was faster
        except StoreError as error:
            raise cannot_write("delegation token", error) from error
        else:
            return before


def _path(token_id: str) -> str:
    return f"{_TOKENS}/{token_id}"


def _encode(token: DelegationToken) -> bytes:
    node = _TokenNode(
        token_id=token.token_id,
        owner=_quoted(token.owner),
        renewers=list(map(_quoted, token.renewers)),
        issue_timestamp=token.issued_ms,
        max_timestamp=token.max_ms,
        expiry_timestamp=token.expires_ms,
        token_requester=_quoted(token.requester),
    )
    return msgspec.json.encode(node)


def _quoted(principal: str) -> str:
    return quote(principal, safe="")


def _decode(name: str, node: Node) -> DelegationToken | None:
    """Return the token in a node, or None after logging why it cannot be used."""
    try:
        found = msgspec.json.decode(node.data, type=_TokenNode)
        if found.token_id != name or not _ID.fullmatch(name):
            raise ValueError("its id is not the name of its node")
        if not 1 <= found.version <= 3:
            raise ValueError(f"its version is {found.version}")
        owner = _principal(found.owner)
        return DelegationToken(
            token_id=name,
            owner=owner,
            requester=_principal(found.token_requester) if found.version >= 3 else owner,
            renewers=tuple(map(_principal, found.renewers)),
            issued_ms=found.issue_timestamp,
            max_ms=found.max_timestamp,
            expires_ms=found.expiry_timestamp,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        _log.error("cannot read the delegation token in %s: %s", _path(name), error)
        return None


def _principal(quoted: str) -> str:
    """Return a principal that is a user. A token of another type would log in as the user of the same name."""
    found = unquote(quoted, errors="strict")
    kind, _, name = found.partition(":")
    if kind != "User" or not name:
        raise ValueError("it has a principal that is not a user")
    return found
