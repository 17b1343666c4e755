"""Sets of characters in patterns: ranges, `\\d`, `[:alpha:]`, `\\p{L}`, `\\p{Greek}`, and what `(?i)` adds to them.

A set is a function that tests a character. Source: RE2/J's `CharClass`, `CharGroup`, `Unicode` and `UnicodeTables`. Its
general categories are Unicode 6.0's and ours Python's, so that they differ in the characters that Unicode added or
moved since 2010.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from oncelog.coordinator.re2.scripts import script

Test = Callable[[str], bool]
Ranges = tuple[tuple[str, str], ...]
"""The first and the last character of each range."""

_DIGIT: Ranges = (("0", "9"),)
_WORD: Ranges = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))

PERL: dict[str, Ranges] = {"d": _DIGIT, "w": _WORD, "s": (("\t", "\n"), ("\f", "\r"), (" ", " "))}
"""The ranges of `\\d`, `\\w` and `\\s`. An upper-case letter means all other characters."""

POSIX: dict[str, Ranges] = {
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
"""The ranges of `[:digit:]` and the others. `[:^digit:]` means all other characters."""

_CATEGORIES = frozenset(
    (
        *("C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl", "No"),
        *("P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"),
    )
)
_UNASSIGNED = "Cn"
"""The only category that RE2/J lacks. `C` does not include it."""
_ORBITS = (
    *("Kk\u212a", "Ss\u017f", "\xb5\u039c\u03bc", "\xc5\xe5\u212b", "\xdf\u1e9e", "\u0130", "\u0131"),
    *("\u01c4\u01c5\u01c6", "\u01c7\u01c8\u01c9", "\u01ca\u01cb\u01cc", "\u01f1\u01f2\u01f3"),
    *("\u0345\u0399\u03b9\u1fbe", "\u0392\u03b2\u03d0", "\u0395\u03b5\u03f5", "\u0398\u03b8\u03d1\u03f4"),
    *("\u039a\u03ba\u03f0", "\u03a0\u03c0\u03d6", "\u03a1\u03c1\u03f1", "\u03a3\u03c2\u03c3", "\u03a6\u03c6\u03d5"),
    *("\u03a9\u03c9\u2126", "\u1e60\u1e61\u1e9b"),
)
"""Characters that differ only in case, where these are not just a small and a capital letter."""
_ORBIT_OF = {character: orbit for orbit in _ORBITS for character in orbit}
_LAST_FOLDED = "\U0001044f"
"""RE2/J ignores the case of later characters, except where the pattern has just one."""


def folded(character: str) -> str:
    """Return the character and those that differ from it only in case."""
    orbit = _ORBIT_OF.get(character)
    if orbit is not None:
        return orbit
    for other in (character.lower(), character.upper(), character.title()):
        if other != character and len(other) == 1:
            return character + other
    return character


def _orbit(character: str) -> str:
    return _ORBIT_OF.get(character, character)


_FOLDED: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(("Lt", "Lu", "Mn", "Common", "Greek", "Inherited"), folded),
    "Ll": _orbit,
}
"""The names of `\\p` that have more characters with `(?i)`, with what they ignore. `\\p{Ll}` still has no A."""


def one(character: str, *, ignore_case: bool) -> Test:
    """Return the set of one character."""
    return frozenset(folded(character)).__contains__ if ignore_case else character.__eq__


def in_ranges(ranges: Ranges, *, ignore_case: bool, negated: bool = False) -> Test:
    """Return the set of the characters in the ranges, or with `negated` of all others."""

    def test(character: str) -> bool:
        return any(low <= character <= high for low, high in ranges)

    return _signed(_ignoring_case(test) if ignore_case else test, negated=negated)


def with_property(name: str, *, ignore_case: bool, negated: bool) -> Test | None:
    """Return the set of a general category or a script, or of all others. Return None if there is none of this name."""
    test = _property(name)
    if test is None:
        return None
    forms = _FOLDED.get(name) if ignore_case else None
    return _signed(test if forms is None else _ignoring_case(test, forms), negated=negated)


def union(tests: Sequence[Test], *, negated: bool) -> Test:
    """Return the set of the characters that are in any of these sets, or in none."""
    if len(tests) == 1:
        return _signed(tests[0], negated=negated)
    return lambda character: any(test(character) for test in tests) is not negated


def _property(name: str) -> Test | None:
    if name == "Any":
        return lambda _: True
    if name not in _CATEGORIES:
        return script(name)

    def test(character: str) -> bool:
        category = unicodedata.category(character)
        return category.startswith(name) and category != _UNASSIGNED

    return test


def _ignoring_case(test: Test, forms: Callable[[str], str] = folded) -> Test:
    def ignoring(character: str) -> bool:
        return any(map(test, forms(character) if character <= _LAST_FOLDED else character))

    return ignoring


def _signed(test: Test, *, negated: bool) -> Test:
    return (lambda character: not test(character)) if negated else test
