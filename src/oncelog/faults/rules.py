"""Rules say which requests meet which fault. No I/O, no clock.

A rule is a text: `ACTION API[:NUMBERS] [KEY=VALUE ...]`.

    lose-answer Produce:1                        the response to the first Produce is lost
    error Produce:2-4 code=NOT_LEADER_OR_FOLLOWER topic=orders
    delay Heartbeat:3- for=2s                    from the third one on
    silence *                                    all requests

Numbers count the requests that match API and filters, from 1, over all connections. Without numbers, a rule applies to
each of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from oncelog.faults.requests import Request, api_name
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode


class RuleError(ValueError):
    """A rule that cannot be used. The message is a sentence that says what is allowed."""


class Action(StrEnum):
    """What happens to a request."""

    PASS = "pass"
    """It arrives, and its response too. A rule with it exempts the request from later rules, and logs it."""
    LOSE_REQUEST = "lose-request"
    """It does not arrive. The connection closes."""
    LOSE_ANSWER = "lose-answer"
    """It arrives, but its response is lost: the connection closes instead."""
    CUT = "cut"
    """It is passed on, and the connection closes at once."""
    HOLD = "hold"
    """The client's connection closes. The request arrives later: after `for`, or by `FaultProxy.release`."""
    DELAY = "delay"
    """It arrives after `for`, and the later requests of its connection after it."""
    DUPLICATE = "duplicate"
    """It arrives twice. The second response is dropped."""
    ERROR = "error"
    """It does not arrive. Its response is the error `code`, after `for`. Later requests may arrive meanwhile."""
    ERROR_AFTER = "error-after"
    """It arrives and takes effect, but its response is the error `code`, after `for`."""
    SILENCE = "silence"
    """It does not arrive. The connection stays open, but no later request of it arrives or is answered either."""


class Fault(NamedTuple):
    """An action with its options."""

    action: Action
    seconds: float | None = None
    """How long a fault takes. None: an error is returned at once, a held request waits for `FaultProxy.release`."""
    code: ErrorCode = ErrorCode.NONE


PASSED = Fault(Action.PASS)
"""What happens to a request for which no rule has a fault. The `pass` of a rule is equal, but another object."""

_WITH_CODE = frozenset({Action.ERROR, Action.ERROR_AFTER})
_WITH_TIME = frozenset({Action.HOLD, Action.DELAY}) | _WITH_CODE

FILTERS: dict[str, Callable[[Request], set[str]]] = {
    "client": lambda request: {request.client_id or ""},
    "broker": lambda request: {str(request.broker)},
    "topic": lambda request: {topic for topic, _ in request.partitions},
    "partition": lambda request: {partition for _, partition in request.partitions},
    "group": Request.groups,
    "transactional-id": Request.transactional_ids,
}
"""Filter -> what it compares with. It matches if one of the values is equal."""

_APIS = {api_name(key).lower(): key for key in ApiKey}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_RANGE = re.compile(r"(\d+)(?:(-)(\d*))?")


class Rule:
    """One rule, and how many requests it has matched."""

    def __init__(self, text: str) -> None:
        """Raises RuleError."""
        self.text = text
        words = text.split()
        if len(words) < 2:
            raise RuleError(f"{text!r} is not a rule; write ACTION API[:NUMBERS] [KEY=VALUE ...]")
        name, _, numbers = words[1].partition(":")
        self._api = _api(name)
        self._numbers = [_range(part) for part in numbers.split(",")] if numbers else []
        options = _options(words[2:])
        self._filters = [(FILTERS[key], value) for key, value in options.items() if key in FILTERS]
        self._partition = (options["topic"], options["partition"]) if {"topic", "partition"} <= options.keys() else None
        self._fault = _fault(words[0], {key: value for key, value in options.items() if key not in FILTERS})
        self._matched = 0

    def fault(self, request: Request) -> Fault | None:
        """Count the request if it matches. Return its fault, or None."""
        if self._api is not None and request.api is not self._api:
            return None
        if not all(value in values(request) for values, value in self._filters):
            return None
        if self._partition is not None and self._partition not in request.partitions:
            return None
        self._matched += 1
        numbered = not self._numbers or any(low <= self._matched <= high for low, high in self._numbers)
        return self._fault if numbered else None


def parse_fault(text: str) -> Fault:
    """Return the fault in `ACTION [for=TIME] [code=ERROR]`. Raises RuleError."""
    words = text.split() or [""]
    return _fault(words[0], _options(words[1:]))


def _fault(name: str, options: dict[str, str]) -> Fault:
    try:
        action = Action(name)
    except ValueError:
        raise RuleError(f"{name!r} is not an action; the actions are {', '.join(Action)}") from None
    known = [*(["for"] if action in _WITH_TIME else []), *(["code"] if action in _WITH_CODE else [])]
    for key in options:
        if key not in known:
            filters = ", ".join(FILTERS)
            allowed = f"{' and '.join(known)}, and the filters {filters}" if known else f"the filters {filters}"
            raise RuleError(f"{action} has no option {key!r}; it has {allowed}")
    if action is Action.DELAY and "for" not in options:
        raise RuleError("delay needs a time, such as for=200ms")
    if action in _WITH_CODE and "code" not in options:
        raise RuleError(f"{action} needs an error, such as code=NOT_LEADER_OR_FOLLOWER")
    seconds = _seconds(options["for"]) if "for" in options else None
    return Fault(action, seconds, _code(options["code"]) if "code" in options else ErrorCode.NONE)


def _options(words: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise RuleError(f"{word!r} is not KEY=VALUE")
        if key in options:
            raise RuleError(f"{key} is given twice")
        options[key] = value
    return options


def _api(name: str) -> ApiKey | None:
    if name == "*":
        return None
    found = _APIS.get(name.replace("_", "").replace("-", "").lower())
    if found is None:
        names = ", ".join(sorted(map(api_name, ApiKey)))
        raise RuleError(f"{name!r} is not an API; the APIs are * (all), {names}")
    return found


def _range(text: str) -> tuple[int, float]:
    found = _RANGE.fullmatch(text)
    if found is None or int(found[1]) < 1:
        raise RuleError(f"{text!r} is not a number of a request; write 3, 3-5, 3- or 1,3 and count from 1")
    low = int(found[1])
    high = float("inf") if found[2] and not found[3] else int(found[3] or low)
    if high < low:
        raise RuleError(f"{text!r} ends before it begins")
    return low, high


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text)
    if found is None:
        raise RuleError(f"{text!r} is not a time; write 200ms, 2s or 1m")
    return float(found[1]) * _UNITS[found[2]]


def _code(text: str) -> ErrorCode:
    try:
        code = ErrorCode[text.upper()]
    except KeyError:
        raise RuleError(f"{text!r} is not the name of a Kafka error, such as NOT_LEADER_OR_FOLLOWER") from None
    if code is ErrorCode.NONE:
        raise RuleError("NONE is no error: use lose-answer or duplicate if the request shall take effect")
    return code
