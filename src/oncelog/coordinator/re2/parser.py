"""Parse patterns: literals, classes, groups, alternatives, repetitions, assertions, escapes and flags of RE2.

The parser accepts and refuses what RE2/J does, with the descriptions of its errors (source: RE2/J's `Parser`), except
that patterns have limits: their length, the depth of their groups, and the size of their programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from oncelog.coordinator.re2 import characters, program
from oncelog.coordinator.re2.characters import PERL, POSIX, Ranges, Test
from oncelog.coordinator.re2.program import ASSERTIONS, Piece

MAX_LENGTH = 4096
"""The largest number of characters of a pattern."""
MAX_DEPTH = 100
"""The largest number of groups inside each other."""
MAX_SIZE = 4096
"""The largest number of instructions of a program. Repetitions count as often as they may occur."""
MAX_REPEAT = 1000
"""The largest number in `{m,n}`, as in RE2/J."""

_REPEAT = re.compile(r"\{(0|[1-9][0-9]*)(,(0|[1-9][0-9]*)?)?\}")
_BOUNDS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_NAME = re.compile(r"[A-Za-z0-9_]+")
_FLAGS = "imsU"
"""Ignore case; let `^` and `$` match at lines, and `.` newlines; swap `*` and `*?`, which match the same texts."""
_NUMBER = re.compile(r"\\(?:([1-7][0-7]{1,2}|0[0-7]{0,2})|x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2})))")
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

_BAD_CLASS = "invalid character class range"
_BAD_ESCAPE = "invalid escape sequence"
_BAD_NAME = "invalid named capture"
_NO_ARGUMENT = "missing argument to repetition operator"


class PatternSyntaxError(ValueError):
    """Raised for an invalid pattern. The message is the description in RE2/J's `PatternSyntaxException`."""


def parse(text: str) -> Piece:
    """Return the piece for the whole pattern. Raises PatternSyntaxError."""
    if len(text) > MAX_LENGTH:
        _refuse(f"it has more than {MAX_LENGTH} characters")
    return _Parser(text).parse()


def _refuse(reason: str) -> NoReturn:
    raise PatternSyntaxError(reason)


class _Group(NamedTuple):
    """A group without its end: the flags before it, its alternatives, and the pieces of the last one so far."""

    flags: frozenset[str]
    alternatives: list[Piece]
    pieces: list[Piece]

    def closed(self) -> Piece:
        """Return the piece of the whole group."""
        piece = program.either([*self.alternatives, program.sequence(self.pieces)])
        return _checked(piece)


def _checked(piece: Piece) -> Piece:
    if piece.size > MAX_SIZE:
        _refuse(f"it needs more than {MAX_SIZE} states when its repetitions are expanded")
    return piece


class _Parser:
    """Read a pattern from left to right. The groups that are open are a stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = [_Group(self._flags, [], [])]
        self._names: set[str] = set()
        self._elements: dict[str, Callable[[], None]] = {
            "(": self._open,
            ")": self._close,
            "|": self._bar,
            "^": self._line_assertion,
            "$": self._line_assertion,
            ".": self._dot,
            "[": self._class,
            "\\": self._escape,
        }

    def parse(self) -> Piece:
        """Return the piece for the whole pattern."""
        after_repetition = False
        while self._at < len(self._text):
            sign = self._text[self._at]
            bounds = self._bounds()
            if bounds is None:
                self._elements.get(sign, self._literal)()
            else:
                self._repeat(*bounds, after_repetition)
            after_repetition = bounds is not None or sign == "{"  # RE2/J repeats no `{`, even if it means itself
        if len(self._groups) > 1:
            _refuse("missing closing )")
        return self._groups[0].closed()

    # -- the text ------------------------------------------------------------------------------------------------------

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        if found:
            self._at += len(text)
        return found

    def _until(self, end: str, reason: str) -> str:
        """Return the text before the next `end`, and go on after it."""
        index = self._text.find(end, self._at)
        if index < 0:
            _refuse(reason)
        found = self._text[self._at : index]
        self._at = index + len(end)
        return found

    def _add(self, piece: Piece) -> None:
        self._groups[-1].pieces.append(piece)

    def _add_one(self, character: str) -> None:
        self._add(program.character(characters.one(character, ignore_case=self._ignore_case)))

    @property
    def _ignore_case(self) -> bool:
        return "i" in self._flags

    # -- repetitions ---------------------------------------------------------------------------------------------------

    def _bounds(self) -> tuple[int, int | None] | None:
        """Read a repetition. Return its minimum and its maximum, if it has one, or None if there is none here."""
        bounds = _BOUNDS.get(self._text[self._at])
        if bounds is not None:
            self._at += 1
        else:
            found = _REPEAT.match(self._text, self._at)
            if found is None:
                return None
            self._at = found.end()
            low, comma, high = found.groups()
            if max(len(low), len(high or "")) > len(str(MAX_REPEAT)):
                _refuse("invalid repeat count")
            bounds = int(low), (int(high) if high else None if comma else int(low))
        self._take("?")  # a lazy repetition matches the same whole texts
        return bounds

    def _repeat(self, low: int, high: int | None, after_repetition: bool) -> None:
        if max(low, high or 0) > MAX_REPEAT or (high is not None and high < low):
            _refuse("invalid repeat count")
        if after_repetition:
            _refuse("invalid nested repetition operator")
        pieces = self._groups[-1].pieces
        if not pieces:
            _refuse(_NO_ARGUMENT)
        pieces[-1] = _checked(program.repeated(pieces[-1], low, high))

    # -- groups --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._take("(?P<") or self._take("(?<"):
            name = self._until(">", _BAD_NAME)
            if not _NAME.fullmatch(name):
                _refuse(_BAD_NAME)
            if name in self._names:
                _refuse("duplicate capture group name")
            self._names.add(name)
            self._enter(self._flags)
        elif self._take("(?"):
            self._read_flags()
        else:
            self._at += 1
            self._enter(self._flags)

    def _enter(self, flags: frozenset[str]) -> None:
        if len(self._groups) > MAX_DEPTH:
            _refuse(f"it has more than {MAX_DEPTH} groups inside each other")
        self._groups.append(_Group(self._flags, [], []))
        self._flags = flags

    def _read_flags(self) -> None:
        """Read the rest of `(?flags)`, which sets them until the end of the group, or of `(?flags:`."""
        flags, on, seen = self._flags, True, False
        for letter in self._text[self._at :]:
            self._at += 1
            if letter in _FLAGS:
                flags = flags | {letter} if on else flags - {letter}
                seen = True
            elif letter == "-" and on:
                on, seen = False, False
            elif letter == ":" and (on or seen):
                return self._enter(flags)
            elif letter == ")" and (on or seen):
                self._flags = flags
                return None
            else:
                break
        _refuse("invalid or unsupported Perl syntax")

    def _close(self) -> None:
        if len(self._groups) == 1:
            _refuse("regexp/syntax: internal error")  # RE2/J says nothing else about a parenthesis too many
        self._at += 1
        group = self._groups.pop()
        self._flags = group.flags
        self._add(group.closed())

    def _bar(self) -> None:
        self._at += 1
        group = self._groups[-1]
        group.alternatives.append(program.sequence(group.pieces[:]))
        group.pieces.clear()

    # -- characters and assertions -------------------------------------------------------------------------------------

    def _literal(self) -> None:
        self._at += 1
        self._add_one(self._text[self._at - 1])

    def _dot(self) -> None:
        self._at += 1
        everything = "s" in self._flags
        self._add(program.character((lambda _: True) if everything else "\n".__ne__))

    def _line_assertion(self) -> None:
        sign = self._text[self._at]
        self._at += 1
        outside = {"^": r"\A", "$": r"\z"}
        self._add(program.assertion(ASSERTIONS[sign if "m" in self._flags else outside[sign]]))

    def _escape(self) -> None:
        if self._take("\\Q"):
            quoted, end, _ = self._text[self._at :].partition("\\E")
            self._at += len(quoted) + len(end)
            for character in quoted:
                self._add_one(character)
            return
        test = self._set()
        holds = ASSERTIONS.get(self._text[self._at : self._at + 2])
        if test is not None:
            self._add(program.character(test))
        elif holds is not None:
            self._at += 2
            self._add(program.assertion(holds))
        else:
            self._add_one(self._escaped())

    def _escaped(self) -> str:
        """Read an escape sequence for one character, inside or outside of a class."""
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            octal, braced, two = number.groups()
            code = int(octal, 8) if octal else int(braced or two, 16)
            if code > 0x10FFFF:
                _refuse(_BAD_ESCAPE)
            self._at = number.end()
            return chr(code)
        letter = self._text[self._at + 1 : self._at + 2]
        if not letter:
            _refuse("trailing backslash at end of expression")
        if letter.isascii() and letter.isalnum() and letter not in _CONTROL:
            _refuse(_BAD_ESCAPE)
        self._at += 2
        return _CONTROL.get(letter, letter)

    # -- sets of characters --------------------------------------------------------------------------------------------

    def _set(self) -> Test | None:
        """Read `\\d`, `\\pL` or the like. Return None if there is none here."""
        if self._peek("\\p") or self._peek("\\P"):
            return self._property()
        letter = self._text[self._at + 1 : self._at + 2]
        if not self._peek("\\") or letter.lower() not in PERL:
            return None
        self._at += 2
        return self._ranges(PERL[letter.lower()], negated=letter.isupper())

    def _ranges(self, ranges: Ranges, *, negated: bool) -> Test:
        return characters.in_ranges(ranges, ignore_case=self._ignore_case, negated=negated)

    def _property(self) -> Test:
        negated = self._peek("\\P")
        self._at += 2
        if self._take("{"):
            name = self._until("}", _BAD_CLASS)
        else:
            name = self._text[self._at : self._at + 1]
            self._at += 1
        positive = name.removeprefix("^")
        test = characters.with_property(
            positive, ignore_case=self._ignore_case, negated=negated is not (positive != name)
        )
        return test or _refuse(_BAD_CLASS)

    def _class(self) -> None:
        self._at += 1
        negated = self._take("^")
        tests: list[Test] = []
        ranges: list[tuple[str, str]] = []
        while not (tests or ranges) or not self._peek("]"):
            test = self._posix() or self._set()
            if test is not None:
                tests.append(test)
            else:
                ranges.append(self._range())
        self._at += 1
        if ranges:
            tests.append(self._ranges(tuple(ranges), negated=False))
        self._add(program.character(characters.union(tests, negated=negated)))

    def _posix(self) -> Test | None:
        """Read `[:digit:]` or the like. Return None if there is none here."""
        end = self._text.find(":]", self._at)
        if not self._peek("[:") or end < 0:
            return None
        name = self._text[self._at + 2 : end]
        self._at = end + 2
        positive = name.removeprefix("^")
        if positive not in POSIX:
            _refuse(_BAD_CLASS)
        return self._ranges(POSIX[positive], negated=positive != name)

    def _range(self) -> tuple[str, str]:
        low = high = self._class_character()
        if self._peek("-") and not self._peek("-]"):
            self._at += 1
            high = self._class_character()
            if high < low:
                _refuse(_BAD_CLASS)
        return low, high

    def _class_character(self) -> str:
        if self._at >= len(self._text):
            _refuse("missing closing ]")
        if self._peek("\\"):
            return self._escaped()
        self._at += 1
        return self._text[self._at - 1]
