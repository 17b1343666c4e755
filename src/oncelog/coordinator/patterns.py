"""Match the regular expressions of clients in linear time, whatever the pattern.

Python's `re` backtracks: a client's pattern such as `(a+)+b` could block the broker. This module compiles a pattern to
an automaton that is in many states at once, like RE2 (Kafka uses RE2/J). The syntax is RE2's: literals, `.`, classes
(`[a-z]`, `[[:digit:]]`, `\\d \\s \\w`), groups, `|`, `* + ? {m,n}` (lazy ones too), `^ $ \\A \\z`, `\\Q...\\E` and the
flags `i` and `s`. The error for any other syntax names it.

A match consists of steps, so that a broker can serve other requests in between:

```python
state = pattern.start
for chunk in chunks:
    state = pattern.advance(state, chunk)
matches = pattern.accepts(state)      # the whole text, not a part of it
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from oncelog.protocol.errors import ErrorCode, ProtocolError

MAX_LENGTH = 1000
"""The largest number of characters of a pattern."""
MAX_SIZE = 500
"""The largest number of instructions of an automaton. Repetitions count as often as they may occur."""
MAX_REPEAT = 1000
_CACHED = 10_000
"""The number of steps in the cache. A full cache is cleared."""

Test = Callable[[str], bool]
Ranges = tuple[tuple[str, str], ...]
State = frozenset[int]
"""Instructions that wait for the next character."""

_DIGIT: Ranges = (("0", "9"),)
_WORD: Ranges = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Ranges = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_PERL: dict[str, Ranges] = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, Ranges] = {
    "alnum": (("0", "9"), ("A", "Z"), ("a", "z")),
    "alpha": (("A", "Z"), ("a", "z")),
    "ascii": (("\0", "\x7f"),),
    "blank": (("\t", "\t"), (" ", " ")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": _DIGIT,
    "graph": (("!", "~"),),
    "lower": (("a", "z"),),
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (("\t", "\r"), (" ", " ")),
    "upper": (("A", "Z"),),
    "word": _WORD,
    "xdigit": (("0", "9"), ("A", "F"), ("a", "f")),
}
_CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class _Instruction(NamedTuple):
    """One instruction of the automaton.

    With a `test`, a character that passes it leads to `after`. Without a test, the instruction leads to `after` at
    once, but only at a place: the start of the text if `at` is 0, its end if 1, any place if -1. The match is the
    instruction without `after`.
    """

    test: Test | None
    after: tuple[int, ...]
    at: int = -1


_START, _END = 0, 1
_BEFORE_ALL = -1
"""An element of the state before the first character, where the end of the text is also its start."""


class _Piece(NamedTuple):
    """A part of the pattern: its number of instructions, and the function that adds them to a program."""

    size: int
    build: Callable[[list[_Instruction], int], int]
    """Map (program, entry of the next piece) to the entry of this piece."""


class Pattern:
    """A compiled pattern. Raises INVALID_REGULAR_EXPRESSION if the pattern is invalid or too large."""

    def __init__(self, text: str) -> None:
        piece = _Parser(text).parse()
        self._program: list[_Instruction] = [_Instruction(None, ())]
        entry = piece.build(self._program, 0)
        self._steps: dict[tuple[State, str], State] = {}
        self.start: State = self._closure((entry,), _START) | {_BEFORE_ALL}
        """The state before the first character."""

    def advance(self, state: State, text: str) -> State:
        """Return the state after these characters."""
        for character in text:
            after = self._steps.get((state, character))
            if after is None:
                if len(self._steps) >= _CACHED:
                    self._steps.clear()
                program = self._program
                targets: set[int] = set()
                for index in state:
                    test = None if index == _BEFORE_ALL else program[index].test
                    if test is not None and test(character):
                        targets.update(program[index].after)
                after = self._steps[state, character] = self._closure(targets)
            state = after
            if not state:
                return state
        return state

    def accepts(self, state: State) -> bool:
        """Return whether the whole text that led to `state` matches."""
        places = (_START, _END) if _BEFORE_ALL in state else (_END,)
        return 0 in self._closure(state - {_BEFORE_ALL}, *places)

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return self.accepts(self.advance(self.start, text))

    def _closure(self, entries: Iterable[int], *places: int) -> State:
        """Return the instructions that `entries` lead to without a character. Assertions pass at `places` only."""
        program = self._program
        seen: set[int] = set()
        pending = list(entries)
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            instruction = program[index]
            if instruction.test is None and (instruction.at < 0 or instruction.at in places):
                pending.extend(instruction.after)
        return frozenset(
            index for index in seen if index == 0 or program[index].test is not None or program[index].at == _END
        )


class _Parser:
    """A recursive descent parser. The length of the pattern limits the depth of its groups."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._ignore_case = False
        self._dot_all = False
        self._depth = 0
        if len(text) > MAX_LENGTH:
            self._refuse(f"it has more than {MAX_LENGTH} characters")

    def _refuse(self, reason: str) -> NoReturn:
        message = f"invalid or unsupported regular expression {self._text[:100]!r}: {reason}"
        raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._at < len(self._text):
            self._refuse("unmatched ')'")
        return piece

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        if found:
            self._at += len(text)
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._refuse("unexpected end")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Piece:
        flags = self._ignore_case, self._dot_all
        self._depth += 1
        if self._depth > 100:
            self._refuse("groups are nested too deeply")
        pieces = [self._sequence()]
        while self._take("|"):
            pieces.append(self._sequence())
        self._depth -= 1
        self._ignore_case, self._dot_all = flags
        return pieces[0] if len(pieces) == 1 else self._checked(_either(pieces))

    def _sequence(self) -> _Piece:
        pieces: list[_Piece] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                literal, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(len(self._text), self._at + len(literal) + 2)
                if literal:
                    pieces += [self._character(letter) for letter in literal[:-1]]
                    pieces.append(self._repeated(self._character(literal[-1])))
                continue
            piece = self._atom()
            if piece is not None:
                pieces.append(self._repeated(piece))
        return self._checked(_concatenation(pieces))

    def _checked(self, piece: _Piece) -> _Piece:
        if piece.size > MAX_SIZE:
            self._refuse("it is too large when its repetitions are expanded")
        return piece

    def _repeated(self, piece: _Piece) -> _Piece:
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._take("?")  # a lazy repetition matches the same texts
        if self._bounds() is not None:
            self._refuse("multiple repeat")
        low, high = bounds
        if max(low, high) > MAX_REPEAT or -1 < high < low:
            self._refuse(f"invalid repetition {{{low},{high}}}")
        size = (piece.size + 1) * max(low + (high < 0), high)
        return self._checked(_Piece(size, lambda program, after: _repeat(piece, low, high, program, after)))

    def _bounds(self) -> tuple[int, int] | None:
        """Parse a repetition. Return its (minimum, maximum or -1), or None if there is none here."""
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._peek("{"):
            inside, brace, _ = self._text[self._at + 1 :].partition("}")
            low, comma, high = inside.partition(",")
            numbers = low.isascii() and low.isdigit() and (not high or (high.isascii() and high.isdigit()))
            if brace and numbers and len(inside) < 10:
                self._at += len(inside) + 2
                return int(low), (int(high) if high else -1 if comma else int(low))
        return None

    def _atom(self) -> _Piece | None:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return self._single((("\n", "\n"),), negated=True) if not self._dot_all else _piece(lambda _: True)
        if character in "^$":
            return _assertion(_START if character == "^" else _END)
        if character in "*+?":
            self._refuse(f"there is nothing to repeat before {character!r}")
        return self._escape() if character == "\\" else self._character(character)

    def _group(self) -> _Piece | None:
        if self._take("?"):
            named = next((opening for opening in ("P<", "<") if self._peek(opening)), None)
            if named is not None and not self._peek("<=") and not self._peek("<!"):
                self._take(named)
                name, bracket, _ = self._text[self._at :].partition(">")
                if not bracket or not (name.isascii() and name.replace("_", "a").isalnum()):
                    self._refuse("invalid group name")
                self._at += len(name) + 1
            else:
                flags = self._flags()
                if flags is None:
                    return None
                before = self._ignore_case, self._dot_all
                self._ignore_case, self._dot_all = flags
                piece = self._closed()
                self._ignore_case, self._dot_all = before
                return piece
        return self._closed()

    def _closed(self) -> _Piece:
        piece = self._alternatives()
        if not self._take(")"):
            self._refuse("unmatched '('")
        return piece

    def _flags(self) -> tuple[bool, bool] | None:
        """Return (ignore case, dot matches all) of `(?flags:`, or None after `(?flags)`, which sets them."""
        values = {"i": self._ignore_case, "s": self._dot_all}
        value = True
        while (character := self._next()) not in ":)":
            if character == "-" and value:
                value = False
            elif character in values:
                values[character] = value
            else:
                self._refuse(f"(?{character} is not supported")
        if character == ":":
            return values["i"], values["s"]
        self._ignore_case, self._dot_all = values["i"], values["s"]
        return None

    def _escape(self) -> _Piece:
        letter = self._next()
        if letter.lower() in _PERL:
            return self._single(_PERL[letter.lower()], negated=letter.isupper())
        if letter in "Az":
            return _assertion(_START if letter == "A" else _END)
        return self._character(self._escaped(letter))

    def _escaped(self, letter: str) -> str:
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter == "x":
            if self._take("{"):
                digits, brace, _ = self._text[self._at :].partition("}")
                self._at += len(digits) + 1
            else:
                digits, brace = self._next() + self._next(), "}"
            try:
                return chr(int(digits, 16)) if brace and digits.isalnum() else self._refuse("invalid \\x escape")
            except (ValueError, OverflowError):
                self._refuse("invalid \\x escape")
        if letter.isascii() and letter.isalnum():
            self._refuse(f"\\{letter} is not supported")
        return letter

    def _class(self) -> _Piece:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._take("]"):
            first = False
            if self._peek("[:"):
                ranges += self._posix()
                continue
            low = self._next()
            if low == "\\":
                letter = self._next()
                if letter.lower() in _PERL:
                    ranges += _PERL[letter] if letter.islower() else _complement(_PERL[letter.lower()])
                    continue
                low = self._escaped(letter)
            high = low
            if self._peek("-") and not self._peek("-]"):
                self._take("-")
                high = self._next()
                if high == "\\":
                    high = self._escaped(self._next())
                if high < low:
                    self._refuse(f"invalid range {low}-{high}")
            ranges.append((low, high))
        return self._single(tuple(ranges), negated=negated)

    def _posix(self) -> Ranges:
        name, colon, _ = self._text[self._at + 2 :].partition(":]")
        ranges = _POSIX.get(name.removeprefix("^"))
        if not colon or ranges is None:
            self._refuse(f"unknown class [:{name[:20]}:]")
        self._at += len(name) + 4
        return _complement(ranges) if name.startswith("^") else ranges

    def _character(self, character: str) -> _Piece:
        return self._single(((character, character),))

    def _single(self, ranges: Ranges, *, negated: bool = False) -> _Piece:
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not (negated or self._ignore_case):
            return _piece(ranges[0][0].__eq__)
        ignore_case = self._ignore_case

        def test(character: str) -> bool:
            forms = {character, character.lower(), character.upper()} if ignore_case else (character,)
            return any(low <= form <= high for form in forms for low, high in ranges) is not negated

        return _piece(test)


def _complement(ranges: Ranges) -> Ranges:
    """Return all other characters. `ranges` must be sorted, and must not overlap."""
    lows = ["\0", *(chr(ord(high) + 1) for _, high in ranges)]
    highs = [*(chr(ord(low) - 1) if low > "\0" else "" for low, _ in ranges), chr(0x10FFFF)]
    return tuple((low, high) for low, high in zip(lows, highs, strict=True) if high and low <= high)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _put(program: list[_Instruction], instruction: _Instruction) -> int:
    program.append(instruction)
    return len(program) - 1


def _piece(test: Test) -> _Piece:
    return _Piece(1, lambda program, after: _put(program, _Instruction(test, (after,))))


def _assertion(at: int) -> _Piece:
    return _Piece(1, lambda program, after: _put(program, _Instruction(None, (after,), at)))


def _concatenation(pieces: list[_Piece]) -> _Piece:
    def build(program: list[_Instruction], after: int) -> int:
        for piece in reversed(pieces):
            after = piece.build(program, after)
        return after

    return _Piece(sum(piece.size for piece in pieces), build)


def _either(pieces: list[_Piece]) -> _Piece:
    def build(program: list[_Instruction], after: int) -> int:
        return _put(program, _Instruction(None, tuple(piece.build(program, after) for piece in pieces)))

    return _Piece(sum(piece.size for piece in pieces) + 1, build)


def _repeat(piece: _Piece, low: int, high: int, program: list[_Instruction], after: int) -> int:
    """Repeat a piece `low` to `high` times, without an upper limit if `high` is -1."""
    entry = after
    if high < 0:
        loop = _put(program, _Instruction(None, ()))
        program[loop] = _Instruction(None, (piece.build(program, loop), after))
        entry = loop
    else:
        for _ in range(high - low):
            entry = _put(program, _Instruction(None, (piece.build(program, entry), after)))
    for _ in range(low):
        entry = piece.build(program, entry)
    return entry
