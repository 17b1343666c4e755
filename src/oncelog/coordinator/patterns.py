"""Match the regular expressions of clients with bounded work for each character, whatever the pattern.

Python's `re` backtracks: a client's pattern such as `(a+)+b` could block the broker. This module is in many states of
an automaton at once, like RE2. Kafka uses RE2/J for subscriptions and for ListTransactions. `coordinator.re2` has the
syntax.

A match consists of steps, so that a broker can serve other requests in between:

```python
pattern = Pattern(text)                      # or subscription(text)
for found in matching(pattern, topics, str):
    if found is None: ...                    # other work may go first
    else: ...                                # a topic whose whole name matches
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from oncelog.coordinator.re2.characters import Test
from oncelog.coordinator.re2.parser import MAX_LENGTH, PatternSyntaxError, parse
from oncelog.coordinator.re2.program import MATCH, Kind, built, kind_of
from oncelog.protocol.errors import ErrorCode, ProtocolError

TURN_WORK = 32_768
"""Instructions that are visited without a pause: some 20 ms."""
MAX_KEPT = 500_000
"""The size of all states that a pattern keeps, in instructions: some 4 MB."""
_STATE_SIZE, _STEP_SIZE = 50, 12
"""What a state and a step to another state take, in instructions."""

REFUSED = "invalid or unsupported regular expression `%s`: %s"
REFUSED_SUBSCRIPTION = "SubscribedTopicRegex `%s` is not a valid regular expression: %s."
"""As in Kafka: `Utils.throwIfRegularExpressionIsInvalid` of its group coordinator."""

Item = TypeVar("Item")


class State:
    """Where the automaton may be after some characters."""

    __slots__ = ("accepts", "before", "instructions", "steps")

    def __init__(self, instructions: tuple[int, ...], before: Kind) -> None:
        self.instructions = instructions
        """Those that wait for the next character, sorted. Without any, no longer text matches."""
        self.before = before
        """The kind of the character before, if instructions need it."""
        self.accepts: bool | None = None
        """Whether the text up to here matches as a whole, if this is known."""
        self.steps: dict[str, State] = {}
        """The known next states."""


class Pattern:
    """A compiled pattern. Raises INVALID_REGULAR_EXPRESSION if the pattern is invalid or too large.

    `refused` is the error message, with `%s` for the pattern and for what is wrong with it.
    """

    def __init__(self, text: str, refused: str = REFUSED) -> None:
        try:
            self._program, entry = built(parse(text))
        except PatternSyntaxError as error:
            shown = text if len(text) <= MAX_LENGTH else f"{text[:100]}..."
            raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, refused % (shown, error)) from error
        self.turn = max(1, TURN_WORK // (2 * len(self._program) + len(text)))
        """The number of characters to advance at once: those that take at most TURN_WORK."""
        self.work = 0
        """The number of instructions visited so far."""
        self._cost = len(text)
        self._kept: dict[tuple[tuple[int, ...], Kind], State] = {}
        self._size = 0
        self.start = self._state((entry,), Kind.EDGE)
        """The state before the first character."""

    def advance(self, state: State, text: str) -> State:
        """Return the state after these characters."""
        for character in text:
            after = state.steps.get(character)
            if after is None:
                if not state.instructions:
                    return state
                after = self._step(state, character)
            state = after
        self.work += len(text)
        return state

    def accepts(self, state: State) -> bool:
        """Return whether the whole text that led to `state` matches."""
        if state.accepts is None:
            state.accepts = MATCH in self._closure(state.instructions, state.before, Kind.EDGE)
        return state.accepts

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return self.accepts(self.advance(self.start, text))

    def _step(self, state: State, character: str) -> State:
        """Return the state after one more character. Keep the step."""
        program = self._program
        kind = kind_of(character)
        passed: dict[Test, bool] = {}
        targets: set[int] = set()
        self.work += self._cost  # for the tests
        for index in self._closure(state.instructions, state.before, kind):
            test = program[index].test
            if test is None:
                continue
            if test not in passed:
                passed[test] = test(character)
            if passed[test]:
                targets.update(program[index].after)
        if self._size > MAX_KEPT:
            self._forget()
        after = self._state(targets, kind)
        state.steps[character] = after
        self._size += _STEP_SIZE
        return after

    def _state(self, entries: Iterable[int], before: Kind) -> State:
        """Return the state with the instructions that `entries` lead to, without passing an assertion."""
        program = self._program
        reached = self._closure(entries)
        waiting = tuple(
            sorted(index for index in reached if index == MATCH or program[index].test or program[index].assertion)
        )
        if not any(program[index].assertion for index in waiting):
            before = Kind.OTHER
        key = waiting, before
        state = self._kept.get(key)
        if state is None:
            state = self._kept[key] = State(waiting, before)
            self._size += len(waiting) + _STATE_SIZE
        return state

    def _closure(self, entries: Iterable[int], before: Kind | None = None, after: Kind | None = None) -> set[int]:
        """Return the instructions that `entries` lead to without a character, between characters of these kinds.

        Without kinds, no assertion is passed.
        """
        program = self._program
        seen: set[int] = set()
        pending = list(entries)
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            test, following, assertion = program[index]
            if test is not None:
                continue
            if assertion is None or (before is not None and after is not None and assertion(before, after)):
                pending.extend(following)
        self.work += len(seen)
        return seen

    def _forget(self) -> None:
        """Forget all states but the first."""
        for state in self._kept.values():
            state.steps.clear()
        self._kept = {(self.start.instructions, self.start.before): self.start}
        self._size = len(self.start.instructions) + _STATE_SIZE


def subscription(text: str) -> Pattern:
    """Return the pattern for `SubscribedTopicRegex` of ConsumerGroupHeartbeat (KIP-848).

    Raises INVALID_REGULAR_EXPRESSION with Kafka's message.
    """
    return Pattern(text, REFUSED_SUBSCRIPTION)


def matching(pattern: Pattern, items: Iterable[Item], name: Callable[[Item], str]) -> Iterator[Item | None]:
    """Yield each item whose whole name matches, and None when the caller may pause: after at most twice TURN_WORK."""
    paused = pattern.work
    for item in items:
        text = name(item)
        state = pattern.start
        for begin in range(0, len(text), pattern.turn):
            state = pattern.advance(state, text[begin : begin + pattern.turn])
            if pattern.work - paused >= TURN_WORK:
                paused = pattern.work
                yield None
        if pattern.accepts(state):
            yield item
