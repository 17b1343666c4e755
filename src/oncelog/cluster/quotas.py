"""Client quotas: their entities and keys, which of them apply to a client, and which values are legal. No I/O.

The rules are those of Kafka's `ClientQuotaManager`, `ClientQuotaControlManager` and `QuotaConfig` (KIP-13, KIP-124,
KIP-546, KIP-599, KIP-612).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import NamedTuple

from oncelog.protocol.errors import ErrorCode, ProtocolError

PRODUCER = "producer_byte_rate"
CONSUMER = "consumer_byte_rate"
REQUESTS = "request_percentage"
MUTATIONS = "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"

USER, CLIENT_ID, IP = "user", "client-id", "ip"
DEFAULT = ""
"""The name of the entity whose quotas apply to each user, client or address without its own. No name is empty."""

LARGEST = {PRODUCER: 2**63 - 1, CONSUMER: 2**63 - 1, CONNECTIONS: 2**31 - 1}
"""The largest values of quotas that are integers. The others are floats."""
_TYPES = {CONNECTIONS: "an INT"}
OF_CLIENTS = frozenset({PRODUCER, CONSUMER, REQUESTS, MUTATIONS})
"""The quotas of users and client ids."""
OF_ADDRESSES = frozenset({CONNECTIONS})
"""The quotas of IP addresses."""


class QuotaEntity(NamedTuple):
    """What a quota applies to: a user, a client id, both, or an IP address. None if the entity has no such part.

    The name `DEFAULT` stands for all users, client ids or addresses without a quota of their own.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def parts(self) -> list[tuple[str, str | None]]:
        """Return the parts as on the wire: type and name, with None as the name of the default."""
        named = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return [(kind, name or None) for kind, name in named if name is not None]

    def __str__(self) -> str:
        shown = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in self.parts)
        return f"ClientQuotaEntity(entries={{{shown}}})"


FIELDS = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
"""The fields of `QuotaEntity` by their types on the wire."""


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity with these parts, by their types on the wire. The name of a default is None.

    Raises INVALID_REQUEST for an unknown type and an empty name. `check_entity` checks the combination.
    """
    for kind, name in parts.items():
        if kind not in FIELDS:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    return QuotaEntity(**{FIELDS[kind]: DEFAULT if name is None else name for kind, name in parts.items()})


Owner = tuple[str, str]
"""The user and the client id that share a quota. An empty part means that the quota counts all of them together."""


class QuotaSet:
    """All quotas at one moment. It never changes. It is false if no client has a quota."""

    __slots__ = ("_addresses", "_by_entity", "_limits")

    def __init__(self, by_entity: Mapping[QuotaEntity, Mapping[str, float]] | None = None) -> None:
        self._by_entity = dict(by_entity or {})
        self._limits: dict[str, dict[tuple[str | None, str | None], float]] = {}
        """By key: (user, client id) -> the limit."""
        self._addresses: dict[str, float] = {}
        for entity, values in self._by_entity.items():
            for key, limit in values.items():
                if key in OF_CLIENTS:
                    self._limits.setdefault(key, {})[entity.user, entity.client_id] = limit
                elif entity.ip is not None:
                    self._addresses[_plain(entity.ip)] = limit

    def __bool__(self) -> bool:
        return bool(self._limits)

    def __len__(self) -> int:
        return len(self._by_entity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuotaSet) and self._by_entity == other._by_entity

    def __hash__(self) -> int:
        return len(self)

    @property
    def by_entity(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Return the quotas of each entity by their keys."""
        return self._by_entity

    def with_changes(self, changes: Mapping[QuotaEntity, Mapping[str, float]]) -> QuotaSet:
        """Return the quotas after these entities have changed. An entity without quotas is removed."""
        after = {**self._by_entity, **changes}
        return QuotaSet({entity: values for entity, values in after.items() if values})

    def has(self, key: str) -> bool:
        """Return whether a client may have a quota of this key."""
        return key in self._limits

    def find(self, key: str, user: str, client_id: str) -> tuple[float, Owner] | None:
        """Return the limit that applies to a client, and who shares it. Return None if the client has no such quota.

        As in Kafka, quotas with a client id do not apply to clients whose id is empty.
        """
        limits = self._limits.get(key)
        if limits is None:
            return None
        both, alone, shared = (user, client_id), (user, ""), ("", client_id)
        wanted: Iterable[tuple[tuple[str | None, str | None], Owner]]
        if client_id:
            wanted = (
                (both, both),
                ((user, DEFAULT), both),
                ((user, None), alone),
                ((DEFAULT, client_id), both),
                ((DEFAULT, DEFAULT), both),
                ((DEFAULT, None), alone),
                ((None, client_id), shared),
                ((None, DEFAULT), shared),
            )
        else:
            wanted = ((user, None), alone), ((DEFAULT, None), alone)
        for entity, owner in wanted:
            limit = limits.get(entity)
            if limit is not None:
                return limit, owner
        return None

    @property
    def connection_rates(self) -> Mapping[str, float]:
        """Return the new connections per second that each IP address may open. DEFAULT stands for all others."""
        return self._addresses


NO_QUOTAS = QuotaSet()


def _plain(address: str) -> str:
    """Return the one text that stands for an address in any of its forms. Other texts are left."""
    try:
        return str(ip_address(address))
    except ValueError:
        return address


def check_entity(entity: QuotaEntity) -> None:
    """Raise INVALID_REQUEST if no quota can apply to the entity. Parts of an unknown type are checked before."""
    if entity.ip is None:
        if entity.user is None and entity.client_id is None:
            raise _invalid("Invalid empty client quota entity")
        return
    if entity.user is not None or entity.client_id is not None:
        raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    if entity.ip:
        try:
            ip_address(entity.ip)
        except ValueError:
            raise _invalid(f"{entity.ip} is not a valid IP or resolvable host.") from None


def check_value(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise INVALID_REQUEST if a quota of the entity cannot have this key or this value."""
    if key not in (OF_CLIENTS if entity.ip is None else OF_ADDRESSES):
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0.0:
        raise _invalid(f"Quota {key} must be greater than 0")
    largest = LARGEST.get(key)
    if largest is not None and value > largest:
        raise _invalid(f"Proposed value for {key} is too large for {_TYPES.get(key, 'a LONG')}.")
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a finite number")
    if largest is not None and abs(value % 1.0) > 1e-6:
        raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)
