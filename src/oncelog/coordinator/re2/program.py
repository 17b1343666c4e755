"""Programs of patterns: the instructions, and the pieces that add them.

A piece knows how many instructions it needs, so that a pattern can be refused before it takes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from oncelog.coordinator.re2.characters import Test

MATCH = 0
"""The instruction at the end of the pattern."""


class Kind(Enum):
    """What assertions need to know about the character on one side of a place."""

    EDGE = auto()
    """There is none: the place is the start or the end of the text."""
    NEWLINE = auto()
    WORD = auto()
    """An ASCII letter, a digit or `_`."""
    OTHER = auto()


def kind_of(character: str) -> Kind:
    """Return the kind of a character."""
    if character == "\n":
        return Kind.NEWLINE
    return Kind.WORD if character == "_" or (character.isascii() and character.isalnum()) else Kind.OTHER


Assertion = Callable[[Kind, Kind], bool]
"""Whether an assertion is true between two characters of these kinds."""

ASSERTIONS: dict[str, Assertion] = {
    r"\A": lambda before, _: before is Kind.EDGE,
    r"\z": lambda _, after: after is Kind.EDGE,
    "^": lambda before, _: before in (Kind.EDGE, Kind.NEWLINE),
    "$": lambda _, after: after in (Kind.EDGE, Kind.NEWLINE),
    r"\b": lambda before, after: (before is Kind.WORD) != (after is Kind.WORD),
    r"\B": lambda before, after: (before is Kind.WORD) == (after is Kind.WORD),
}
"""Assertions by what they are in a pattern with the flag `m`. Without it, `^` means `\\A`, and `$` means `\\z`."""


class Instruction(NamedTuple):
    """One instruction. With a `test`, a character that passes it leads to `after`. Without, it leads there at once.

    If there is an `assertion`, it must be true at the place. The match is the instruction without `after`.
    """

    test: Test | None
    after: tuple[int, ...]
    assertion: Assertion | None = None


Program = list[Instruction]


class Piece(NamedTuple):
    """A part of a pattern: its number of instructions, and the function that adds them to a program."""

    size: int
    build: Callable[[Program, int], int]
    """Map (program, entry of the next piece) to the entry of this piece."""


def built(piece: Piece) -> tuple[Program, int]:
    """Return the program, with the match as instruction MATCH, and its entry."""
    program = [Instruction(None, ())]
    entry = piece.build(program, MATCH)
    return program, entry


def character(test: Test) -> Piece:
    """Return a piece for one character."""
    return Piece(1, lambda program, after: _put(program, Instruction(test, (after,))))


def assertion(holds: Assertion) -> Piece:
    """Return a piece without a character, which is only passed where the assertion is true."""
    return Piece(1, lambda program, after: _put(program, Instruction(None, (after,), holds)))


def sequence(pieces: Sequence[Piece]) -> Piece:
    """Return a piece for these pieces, one after the other."""
    if len(pieces) == 1:
        return pieces[0]

    def build(program: Program, after: int) -> int:
        for piece in reversed(pieces):
            after = piece.build(program, after)
        return after

    return Piece(sum(piece.size for piece in pieces), build)


def either(pieces: Sequence[Piece]) -> Piece:
    """Return a piece for any one of these pieces."""
    if len(pieces) == 1:
        return pieces[0]

    def build(program: Program, after: int) -> int:
        return _put(program, Instruction(None, tuple(piece.build(program, after) for piece in pieces)))

    return Piece(sum(piece.size for piece in pieces) + 1, build)


def repeated(piece: Piece, low: int, high: int | None) -> Piece:
    """Return a piece for `low` to `high` repetitions, without an upper limit if `high` is None."""

    def build(program: Program, after: int) -> int:
        entry = after
        if high is None:
            loop = _put(program, Instruction(None, ()))
            program[loop] = Instruction(None, (piece.build(program, loop), after))
            entry = loop
        else:
            for _ in range(high - low):
                entry = _put(program, Instruction(None, (piece.build(program, entry), after)))
        for _ in range(low):
            entry = piece.build(program, entry)
        return entry

    return Piece((piece.size + 1) * (low + 1 if high is None else max(low, high)), build)


def _put(program: Program, instruction: Instruction) -> int:
    program.append(instruction)
    return len(program) - 1
