"""The product's generators as states: a node is (phase, its input, answers so far), and is replayed exactly."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from oncelog.spark.commit import operations as op
from oncelog.spark.commit.errors import SinkError


class Programs:
    """All nodes so far, numbered. Each is computed once."""

    def __init__(self) -> None:
        self.operation: list[op.Operation | None] = []
        self.result: list[Any] = []
        self.text: list[str] = []
        """The label of the operation, by node."""
        self._keys: list[tuple[Any, ...]] = []
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._first: dict[tuple[tuple[Any, ...], Any], int] = {}
        self._next: dict[tuple[int, Hashable], int] = {}

    def start(self, phases: tuple[Any, ...], state: Any) -> int:
        """Return the first node of a program."""
        known = self._first.get((phases, state))
        if known is None:
            known = self._first[phases, state] = self._node(phases, 0, state, ())
        return known

    def advance(self, node: int, answer: Any) -> int:
        """Return the node after this answer. An exception is raised in the program, as the shell does."""
        known = self._next.get((node, answer))
        if known is None:
            phases, index, state, answers = self._keys[node]
            known = self._next[node, answer] = self._node(phases, index, state, (*answers, answer))
        return known

    def has_passed(self, node: int, phase: Any) -> bool:
        """Return whether a running program has passed this phase."""
        phases, index, *_ = self._keys[node]
        return phase in phases[:index]

    def within(self, node: int, phase: Any) -> bool:
        """Return whether a running program is in this phase."""
        phases, index, *_ = self._keys[node]
        return phases[index] is phase

    def _node(self, phases: tuple[Any, ...], index: int, state: Any, answers: tuple[Any, ...]) -> int:
        while index < len(phases):
            generator = phases[index](state)
            try:
                operation = next(generator)
                for answer in answers:
                    failed = isinstance(answer, Exception)
                    operation = generator.throw(answer) if failed else generator.send(answer)
            except StopIteration as stop:
                index, state, answers = index + 1, stop.value, ()
                continue
            except SinkError as error:
                return self._number(("failed", type(error).__name__), None, error)
            return self._number((phases, index, state, answers), operation, None)
        return self._number(("done", state), None, state)

    def _number(self, key: tuple[Any, ...], operation: op.Operation | None, result: Any) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
            self.operation.append(operation)
            self.text.append(str(operation))
            self.result.append(result)
        return number
