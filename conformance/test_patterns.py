"""Compare our regular expressions with RE2/J, which Kafka 4.3.1 has: which patterns are valid, and what they match.

Subscriptions (KIP-848) and ListTransactions (KIP-1152) need matches of whole texts. The control is a small program with
Kafka's jar of RE2/J.
"""

from __future__ import annotations

import random
import subprocess
import unicodedata
from collections.abc import Iterable, Sequence

import pytest

from oncelog.coordinator.patterns import Pattern
from oncelog.coordinator.re2.characters import folded
from oncelog.coordinator.re2.parser import MAX_DEPTH, MAX_SIZE
from oncelog.coordinator.re2.scripts import ranges_of_scripts
from oncelog.protocol.errors import ProtocolError
from support.apache_kafka import ROOT, SHORT_LIVED, java

PROGRAM = ROOT / "conformance" / "java" / "patterns" / "WholeMatches.java"
REFUSED = "refused "
Case = tuple[str, Sequence[str]]
"""A pattern, and texts."""


def encoded(text: str) -> str:
    return f"x{text.encode().hex()}"


def of_re2j(cases: Iterable[Case]) -> list[str]:
    """Return for each case a 1 or 0 for each text, or what is wrong with the pattern."""
    lines = "".join(f"{' '.join(map(encoded, (pattern, *texts)))}\n" for pattern, texts in cases)
    command = java(str(PROGRAM), options=SHORT_LIVED)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ours(pattern: str, texts: Iterable[str]) -> str:
    try:
        compiled = Pattern(pattern, f"%.0s{REFUSED}%s")
    except ProtocolError as error:
        return str(error)
    return "".join("01"[compiled.matches(text)] for text in texts)


def differences(cases: Sequence[Case]) -> list[tuple[str, str, str, list[str]]]:
    """Return the first cases with another outcome: pattern, our outcome, RE2/J's, the texts."""
    answers = of_re2j(cases)
    found = []
    for (pattern, texts), theirs in zip(cases, answers, strict=True):
        own = ours(pattern, texts)
        if own != theirs:
            both = REFUSED not in own + theirs
            unlike = [text for text, one, other in zip(texts, own, theirs, strict=False) if both and one != other]
            found.append((pattern, own[:99], theirs[:99], unlike[:9]))
    return found[:20]


TEXTS = (
    *(
        "",
        "a",
        "A",
        "aa",
        "ab",
        "aab",
        "abc",
        "b",
        "ba",
        "a-b",
        "a.b",
        "a b",
        "a\nb",
        "\n",
        "a\n",
        "\na",
        "1",
        "a1",
        "_",
    ),
    *("-", ".", "]", "^", "(", "{", "\\", "\0", "\a", "\v", "k", "K", "\u212a", "s", "S", "ſ", "é", "É", "ß", "ẞ", "µ"),
    *("σ", "ς", "Σ", "я", "Я", "中", "ー", "א", "٣", "İ", "ı", "i", "I", "€", "\U0001f601", "A!", "orders", "orders-1"),
)

PATTERNS = r"""
a.* .*  orders|orders-\d+ [a-z]+(-[0-9]+)? (?:a|b)* (a|)(|b) a||b () | || ^a$ ^ $ ^* $+ \Aa\z a^b a$b
\b \B a\b.* \ba\b-\bb\b .*\bb \Bb a\Bb (\b|\B)a \b* (\b)* \ba\b(?s).*
\pL \PL \p{L} \p{^L} \P{^L} \pN \p{Nd} \p{Lu} \p{Ll} \pZ \pC \pM \pP \pS \p{Sc} \p{Any} \P{Any} \p{Greek} \P{Greek}
\p{Han}
\p{Cyrillic} \p{Latin}+ \p{Common}+ [\pL1]+ [^\pL]+ [\p{Greek}\p{Cyrillic}] [^\P{Lu}] \pX \p{X} \p{} \p \P \p{greek}
\p{Cn}
\p{L&} \p{LC} \p{Letter} \p^L \p{^} [\p] [\pX] \p{Greek [\p{L] \p{IsGreek}
(?i)a (?i)K (?i)[a-k] (?i)[^a-k] (?i)\w+ (?i)\W (?i)[\W] (?i)s (?i)ſ (?i)é (?i)ß (?i)µ (?i)σ (?i)[σ-ς] (?i)я (?i)ı (?i)İ
(?i)\p{Lu} (?i)\p{Ll} (?i)\P{Ll} (?i)\p{Greek} (?i)[[:upper:]] (?i)[[:^upper:]] (?i:a)b a(?i)b (?i)a(?-i)b ((?i)a)b
(?s). (?s:.) . (?m)^a$ (?m)a$\n^b$ (?m)a$(?s:.)b (?ms)a$.b (?-m)^a$ (?U)a* (?U)a*? (?Ui)a (?i-s:A.b) (?) (?:a) (?:)
(?i-)a (?-)a (?--i)a (?x)a (?i (?i-s (?P (?Pa) (?P=n) (?#a) (?=a) (?!a) (?<=a)b (?<!a)b (?>a) (?|a) (?'n'a)
(?P<n>a) (?<n>a) (?P<n1_>a) (?P<>a) (?P<a-b>a) (?P<n (?<n (?P<n>a)(?P<n>b) (?P<n>a)(?<m>b) (?P<é>a)
\Qa.b\E \Qa.b \Qa\E+ \Q\E \Q\E* a\Q\E* a*\Q\E* \Q(\E \Q\\E \E [\Qa\E]
\C \Z \X \R \K \G \h \N \e \c \u0041 \x41 \x{41} \x{1F601} \x{} \x{g} \x4 \x \x{110000} \x{41 \0 \00 \000 \0000 \07
\101 \1
\12 \18 \8 \9 (a)\1 \a \v \f \n \r \t \_ \- \. \é \\ \ a\
[a] [^a] [a-c]+ [c-a] [a-] [-a] [a-b-c] [--a] []a] [^]a] [] [^] [ [a [a- [a-] [^a- [\]] [\d] [^\d] [\D] [\w-]+ [\d-z]
[a-\d]
[[:alpha:]] [[:^alpha:]] [^[:alpha:]] [[:alpha:]-] [a-[:alpha:]] [[:word:].]+ [[:nope:]] [[:alpha] [[:] [:alpha:]
[[:^^alpha:]]
[\b] [\z] [\A] [\x41-\x43] [\101] [\n-\r] [\-a] [\\] [.] [*] [(] [^^] [a^]
a* a+ a? a*? a+? a?? a** a*+ a++ a?? a??? a{2} a{2}? a{2}?? a{1,2} a{1,} a{,2} a{ a{1 a{1, a{1,2 a{} a{a} a{01}
a{1,02} a{00} a{0}
a{0,0} a{2,1} a{1000} a{1001} a{1,1001} a{1001,} a{99999999999} a{1}{1} a{1}* (a{1}){1} (a*)* (a*)+ (a|b*)* * + ? {1}
{1 {? {+
{{1} a|* (*) (|*) ^{2} (?i)* (?:)* a(?i)* a*(?i)* ()* (){2}
( ) a) a)b (a ((a) (a)) |) (|) ()|) (a|b a|b) } ] }{ ]]
""".split()  # noqa: SIM905
PATTERNS += ["", " ", "a b", "\n", "\0", "a\\ b", "[ -a]", "\\Q \\E", "(?m)^\n$", "ẞ", "[^\n]", "[\n]"]


def test_table_of_patterns() -> None:
    assert differences([(pattern, TEXTS) for pattern in PATTERNS]) == []


ELEMENTS = (
    *("a", "b", "k", "S", "é", "σ", "K", "-", ":", "\n", ".", "^", "$", "|", "|", "(", ")", ")", "(?:", "(?i)", "(?s)"),
    *("(?m)", "(?U)", "(?i-s:", "(?P<n>", "(?<m>", "[", "]", "]", "[^", "a-z", "[:alpha:]", "[:^word:]", "\\d", "\\D"),
    *("\\w", "\\W", "\\s", "\\S", "\\b", "\\B", "\\A", "\\z", "\\pL", "\\PN", "\\p{Lu}", "\\p{^Ll}", "\\p{Greek}"),
    *("\\P{Latin}", "\\Q", "\\E", "*", "+", "?", "*?", "{2}", "{0,2}", "{1,}", "{,2}", "{0}", "{", "}", "\\x41"),
    *("\\x{e9}", "\\101", "\\0", "\\n", "\\.", "\\_", "\\C", "\\Z", "\\1", "\\"),
)
LETTERS = ("a", "b", "k", "s", "S", "é", "É", "σ", "ς", "\n", "-", "_", "1", " ", "K", "A", "中")


def test_random_rows_of_elements(seed: int) -> None:
    """Most of them are invalid."""
    chance = random.Random(seed)
    cases = []
    for _ in range(2000):
        pattern = "".join(chance.choices(ELEMENTS, k=chance.randrange(1, 9)))
        cases.append((pattern, ["".join(chance.choices(LETTERS, k=chance.randrange(5))) for _ in range(12)]))
    assert differences(cases) == [], f"seed {seed}"


ATOMS = (
    *("a", "b", "k", ".", "^", "$", "\\b", "\\B", "\\A", "\\z", "", "\n", "(?:)", "-", "[ab]", "[^a]", "\\w", "\\W"),
    *("\\pL", "[^\\d]", "[[:alpha:]]", "[\\w-]", "[\\D]", "\\PL"),
)
OPENINGS = ("(", "(?:", "(?i:", "(?m:", "(?s:", "(?ms:", "(?-i:", "(?mi-s:")
REPETITIONS = ("*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??", "{0}")


def valid(chance: random.Random, depth: int) -> str:
    """Return a random pattern with at most this depth of groups."""
    kind = chance.randrange(10) if depth else 0
    if kind < 3:
        return chance.choice(ATOMS)
    first = valid(chance, depth - 1)
    if kind < 6:
        return first + valid(chance, depth - 1)
    if kind < 8:
        return f"{chance.choice(OPENINGS)}{first}|{valid(chance, depth - 1)})"
    return f"(?:{first}){chance.choice(REPETITIONS)}"


def test_random_valid_patterns(seed: int) -> None:
    chance = random.Random(seed)
    cases = [
        (valid(chance, 4), ["".join(chance.choices("aabbkK\n-1A", k=chance.randrange(7))) for _ in range(20)])
        for _ in range(2000)
    ]
    assert differences(cases) == [], f"seed {seed}"


@pytest.fixture
def seed() -> int:
    """Return another seed each time, and print it."""
    chosen = random.SystemRandom().randrange(2**32)
    print(f"seed {chosen}")
    return chosen


ALL = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
OF_UNICODE_3_2 = [each for each in ALL if unicodedata.ucd_3_2_0.category(each) != "Cn"]
"""Characters that RE2/J, the JVM and Python know. With newer ones, `(?i)` may keep RE2/J busy for ever."""


def test_scripts_at_their_ends() -> None:
    """Each script is asked about the first and last character of all ranges of all scripts, and their neighbours."""
    ends = {
        ord(each) + step
        for ranges in ranges_of_scripts().values()
        for row in ranges
        for each in row
        for step in (-1, 0, 1)
    }
    texts = [chr(code) for code in sorted(ends) if 0 <= code < 0x110000 and not 0xD800 <= code < 0xE000]
    assert differences([(f"\\p{{{script}}}", texts) for script in ranges_of_scripts()]) == []


def test_characters_that_differ_in_case() -> None:
    cased = [each for each in OF_UNICODE_3_2 if len(folded(each)) > 1 or each.lower() != each or each.upper() != each]
    one = [(f"(?i)\\x{{{ord(each):x}}}", [*folded(each), each.lower(), each.upper(), "a", "s", "σ"]) for each in cased]
    several = [(pattern.replace("\\x", "[1\\x") + "]", texts) for pattern, texts in one]
    properties = [f"(?i)\\{letter}{{{name}}}" for letter in "pP" for name in ("Any", *ranges_of_scripts())]
    assert differences([*one, *several, *((pattern, cased) for pattern in properties)]) == []


def test_limits_are_ours() -> None:
    """DIFFERS[patterns have limits]: RE2/J takes patterns of any length, depth and size."""
    large, deep = "((a{100}){100}){100}", "(" * (MAX_DEPTH + 1) + "a" + ")" * (MAX_DEPTH + 1)
    assert of_re2j([(large, ["a"]), (deep, ["a"])]) == ["0", "1"]
    said = f"it needs more than {MAX_SIZE} states when its repetitions are expanded"
    assert ours(large, ["a"]) == REFUSED + said
    assert ours(deep, ["a"]) == f"{REFUSED}it has more than {MAX_DEPTH} groups inside each other"
