"""What a page shows, before it is HTML or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from oncelog import errors
from oncelog.client.admin.transactions import MAX_TRANSACTION_TIMEOUT_MS, ProducerInfo
from oncelog.console.tables import Row, Table
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.topics import TopicPartition
from oncelog.watch.asking import Asker, texts

if TYPE_CHECKING:
    from oncelog.aio import Admin

T = TypeVar("T")


@dataclass(frozen=True)
class Actor:
    """What pages and actions may use: the admin client, and how to create other clients of the same brokers.

    `now_ms` is the time of the request, in ms since the epoch.
    """

    admin: Admin
    bootstrap: str
    config: Mapping[str, Any]
    now_ms: int


@dataclass
class View:
    """One address that browsers look at: what its page loader may use.

    `path` has the parts of the address, `query` the rest. `memory` lives as long as somebody looks at the address: a
    loader keeps there what it need not ask again. `now_ms` is the time, in ms since the epoch.
    """

    actor: Actor
    path: Mapping[str, Any]
    query: Mapping[str, str]
    memory: dict[str, Any]
    now_ms: int
    changes: bool
    """Whether the console may change something."""

    @property
    def admin(self) -> Admin:
        """Return the client that all pages share."""
        return self.actor.admin

    @cached_property
    def asker(self) -> Asker:
        """Return what asks brokers for this page, and notes which do not answer."""
        return Asker(self.admin.cluster)

    async def leaders(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the node ids of the leaders of those partitions that exist. Below 0: there is none at the moment."""
        topics = await self.admin.cluster.topics(internal=True)
        return {
            at: topics[at[0]].partitions[at[1]].leader
            for at in wanted
            if at[0] in topics and at[1] in topics[at[0]].partitions
        }

    def number(self, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
        """Return a number of the query within bounds. A text that is none counts as absent."""
        try:
            found = int(self.query[name])
        except (KeyError, ValueError):
            return default
        return min(max(found, least), most)

    async def every(self, ms: int, name: str, load: Callable[[Asker], Awaitable[T]], about: object = None) -> T:
        """Return what `load` returns. Call it at most once in `ms`, unless it is `about` something else now.

        The troubles of the asker that `load` gets are kept with its result.
        """
        kept, now = self.memory.get(name), asyncio.get_running_loop().time()
        if kept is not None and kept[0] == about and (now - kept[1]) * 1000 < ms:
            known: T = kept[2]
            self.asker.troubles += kept[3]
            return known
        asker = self.asker.apart()
        found = await load(asker)
        self.memory[name] = about, asyncio.get_running_loop().time(), found, asker.troubles
        self.asker.troubles += asker.troubles
        return found

    def lacks(self, about: str) -> str:
        """Return why a question was not answered by all, or an empty text."""
        return "; ".join(texts(each for each in self.asker.troubles if each.about == about))

    def flag(self, name: str) -> bool:
        """Return whether the query has this switch."""
        return self.query.get(name, "") not in ("", "0")


@dataclass
class Page:
    """A loaded page. `template` is its file, `facts` are single values for the template and for JSON.

    `figures` are drawings in SVG by name, `extra` is for the template only. `crumbs` are (text, address) of the pages
    above it. `unread` says what brokers have not answered.
    """

    title: str
    template: str
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    crumbs: list[tuple[str, str]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether the page changes while somebody looks at it. A question does not."""
        return bool(self.extra.get("live", True))

    def table(self, name: str) -> Table:
        """Return the table with this name. Templates use it."""
        return next(each for each in self.tables if each.name == name)

    def as_json(self) -> dict[str, Any]:
        """Return everything that the page shows, for `?format=json`."""
        return {
            "title": self.title,
            "unread": self.unread,
            **self.facts,
            **{each.name: each.as_json() for each in self.tables},
        }


@dataclass(frozen=True)
class PageError:
    """Why a page cannot be loaded: the HTTP status, the heading of the page that says so, and sentences."""

    status: int
    heading: str
    text: str
    advice: str = ""

    @property
    def kind(self) -> str:
        """Return the class of the page in the style sheet."""
        return {403: "forbidden", 404: "missing"}.get(self.status, "unreachable")


def is_old(producer: ProducerInfo, now_ms: int, after_ms: int = MAX_TRANSACTION_TIMEOUT_MS) -> bool:
    """Return whether the newest timestamp of a producer is so old that its open transaction may hang.

    Producers choose timestamps, so this alone shows nothing.
    """
    return now_ms - producer.last_timestamp >= after_ms


async def or_reason(rows: Awaitable[list[Row]]) -> tuple[list[Row], str]:
    """Return the rows of a table, or none, and the reason if the client may not see them."""
    try:
        return await rows, ""
    except errors.KafkaError as error:
        if error.code is ErrorCode.SECURITY_DISABLED:
            return [], "The brokers have no authorizer, so every client may do everything."
        if isinstance(error, errors.AuthorizationError | errors.UnsupportedError):
            return [], _sentence(error)
        raise


def _sentence(error: errors.KafkaError) -> str:
    return f"{error.message} ({error.code.name})."


def page_error_of(error: errors.OncelogError) -> PageError:
    """Return what to tell a person about an error of the client."""
    if not isinstance(error, errors.KafkaError):
        return PageError(400, "This cannot be shown", str(error))
    text = _sentence(error)
    if error.code in _MISSING:
        return PageError(404, _MISSING[error.code], text, error.advice)
    for kind, status, heading in _HEADINGS:
        if isinstance(error, kind):
            return PageError(status, heading, text, error.advice)
    return PageError(502, "The broker rejected a request", text, error.advice)


_MISSING = {
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "This transactional id does not exist",
    ErrorCode.GROUP_ID_NOT_FOUND: "This group does not exist",
}
_HEADINGS: tuple[tuple[type[errors.KafkaError], int, str], ...] = (
    (errors.UnknownTopicError, 404, "This topic or partition does not exist"),
    (errors.AuthorizationError, 403, "Not authorized"),
    (errors.AuthenticationError, 403, "The login failed"),
    (errors.UnsupportedError, 501, "The broker does not offer this"),
    (errors.ConnectionFailedError, 503, "No broker can be reached"),
    (errors.RetriableError, 503, "The brokers do not answer"),
)
