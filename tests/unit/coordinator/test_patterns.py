"""Regular expressions of clients: RE2's results, in linear time for every pattern."""

from __future__ import annotations

import re
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.coordinator.patterns import MAX_KEPT, TURN_WORK, Pattern, matching, subscription
from oncelog.coordinator.re2.parser import MAX_DEPTH, MAX_LENGTH, MAX_SIZE
from oncelog.protocol.errors import ErrorCode, ProtocolError


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("etl-.*", ["etl-", "etl-1"], ["etl", "my-etl-1", "etl-\n"]),
        ("(?s)a.b", ["a\nb", "axb"], ["ab"]),
        ("(?i)Etl", ["etl", "ETL"], ["et"]),
        ("(?i:e)tl", ["Etl", "etl"], ["eTl"]),
        ("a(?i)b|c", ["ab", "aB", "C"], ["AB"]),
        ("((?i)a)b", ["Ab"], ["AB"]),
        ("(?i-s)a(?-i)b", ["Ab"], ["AB"]),
        ("[a-c_]+[^0-9x]", ["ab-", "__"], ["a1", "x-", "ax"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("[a-]", ["a", "-"], ["b"]),
        (r"[\d\-z]{2,3}", ["1-", "9z9"], ["1", "1234", "ab"]),
        (r"[\D]\W\S", ["a- "[:2] + "x"], ["1-x", "aax"]),
        ("[[:upper:][:^alnum:]]", ["A", "-"], ["a", "1"]),
        (r"\d+\s\w", ["12 _"], ["1", "a b"]),
        (r"\x41\x{1F600}\.\t", ["A\U0001f600.\t"], ["A"]),
        (r"\Qa.b\E+", ["a.b", "a.bb"], ["axb", "a.ba.b"]),
        (r"\Q(", ["("], [""]),
        ("^a$|^$", ["a", ""], ["b"]),
        (r"\Aa\z", ["a"], ["aa"]),
        ("a^b", [], ["ab", "a^b"]),
        ("a$b", [], ["ab", "a$b"]),
        ("(?P<x>a|bc)*?d??", ["", "abcad", "bcd"], ["b", "dd"]),
        ("(?<x>a){2}", ["aa"], ["a", "aaa"]),
        ("a{0}b{2,}", ["bb", "bbbb"], ["b", "abb"]),
        ("a{,2}", ["a{,2}"], ["a"]),
        ("x{", ["x{"], ["x"]),
        ("(a*)*", ["", "aaa"], ["b"]),
        ("|a", ["", "a"], ["b"]),
        ("é.ß", ["éxß"], ["e.s"]),
        (r"a\b-\bb", ["a-b"], ["a-"]),
        (r".*\bfoo\b.*", ["foo", "a-foo.b"], ["afoo", "foo_"]),
        (r"a\Bb", ["ab"], ["a"]),
        (r"\b", [], ["", "a"]),
        (r"\B", [""], ["a"]),
        (r"(?:\b|a|-)*", ["a-a", "", "aa"], ["b"]),
        ("(?m)^a$\n^b$", ["a\nb"], ["ab", "a\n"]),
        ("(?m)a$.*", ["a"], ["a\n", "ab"]),
        ("(?ms)a$.*", ["a", "a\nb"], ["ab"]),
        ("(?U)a*b*?", ["", "aab"], ["ba"]),
        ("(?m-s:a.)|.", ["ab", "a"], ["a\n"]),
        (r"\pL\p{Nd}\PN", ["a1-", "é٣x"], ["11-", "a11"]),
        (r"[\p{Lu}\pN]+", ["A1É"], ["a", "é"]),
        (r"[^\pL\D]", ["1"], ["a", "-"]),
        (r"\p{^Lu}", ["a"], ["A"]),
        (r"\P{^Lu}", ["A"], ["a"]),
        (r"\p{Greek}\p{Cyrillic}\p{Han}", ["λд中"], ["ldz"]),
        (r"\p{Latin}+\p{Common}", ["abc-", "é."], ["abc", "λ."]),
        (r"\p{Any}", ["a", "\n"], [""]),
        (r"(?i)\p{Lu}\p{Ll}", ["aa", "Aa"], ["aA"]),
        (r"(?i)\W", ["-"], ["a", "K"]),
        ("(?i)[a-k]É[^s]", ["Kéa", "KÉA"], ["aéS", "aéſ"]),
        ("(?i)σ", ["σ", "ς", "Σ"], ["s"]),
        ("(?i)ı", ["ı"], ["i", "I"]),
        (r"\101\0\07\a\f\v", ["A\0\7\a\f\v"], ["1"]),
        ("a(?i)*b", ["aaB", "b"], ["Ab"]),
        ("a*(?i)*", ["aa"], ["A"]),
        (r"a\Q\E+", ["a", "aa"], [""]),
        ("a{01}", ["a{01}"], ["a"]),
        ("[[:word:]-z]", ["-", "z"], ["."]),
        ("[[:wo]]", [":]", "w]"], ["a]"]),
        ("(a|)(|b)(|)c||d", ["c", "abc", "", "d"], ["e"]),
    ],
)
def test_whole_text_must_match(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in others if compiled.matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "missing closing )"),
        ("a(b|(c)", "missing closing )"),
        ("a)", "regexp/syntax: internal error"),
        ("[a", "missing closing ]"),
        ("[a-", "missing closing ]"),
        ("a\\", "trailing backslash at end of expression"),
        ("*a", "missing argument to repetition operator"),
        ("a|+", "missing argument to repetition operator"),
        ("(?i)*", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a++", "invalid nested repetition operator"),
        ("a{2}{3}", "invalid nested repetition operator"),
        ("{?", "invalid nested repetition operator"),
        ("a{3,2}", "invalid repeat count"),
        ("a{1001}", "invalid repeat count"),
        ("a{1,99999999999}", "invalid repeat count"),
        ("[b-a]", "invalid character class range"),
        (r"[a-\d]", "invalid escape sequence"),
        ("[[:nonsense:]]", "invalid character class range"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?!a)", "invalid or unsupported Perl syntax"),
        ("(?i-)a", "invalid or unsupported Perl syntax"),
        ("(?x)a", "invalid or unsupported Perl syntax"),
        ("(?i", "invalid or unsupported Perl syntax"),
        ("(?<=a)b", "invalid named capture"),
        ("(?P<a-b>x)", "invalid named capture"),
        ("(?P<a>x)(?<a>y)", "duplicate capture group name"),
        (r"(a)\1", "invalid escape sequence"),
        (r"\C", "invalid escape sequence"),
        (r"\Z", "invalid escape sequence"),
        (r"[\b]", "invalid escape sequence"),
        (r"\x{zz}", "invalid escape sequence"),
        (r"\x{110000}", "invalid escape sequence"),
        (r"\pX", "invalid character class range"),
        (r"\p", "invalid character class range"),
        (r"\p{Cn}", "invalid character class range"),
        (r"\p{greek}", "invalid character class range"),
        (r"[\p{Greek]", "invalid character class range"),
        ("((a{100}){100}){100}", f"it needs more than {MAX_SIZE} states when its repetitions are expanded"),
        ("a" * (MAX_LENGTH + 1), f"it has more than {MAX_LENGTH} characters"),
        ("(" * 200 + ")" * 200, f"it has more than {MAX_DEPTH} groups inside each other"),
    ],
)
def test_unsupported_pattern_is_rejected_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Pattern(pattern, "%.0s%s")
    assert (caught.value.code, str(caught.value)) == (ErrorCode.INVALID_REGULAR_EXPRESSION, reason)


def test_subscriptions_have_kafkas_message() -> None:
    with pytest.raises(ProtocolError) as caught:
        subscription("a{%s}(")
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION == 128
    said = "SubscribedTopicRegex `a{%s}(` is not a valid regular expression: missing closing )."
    assert str(caught.value) == said
    assert subscription("orders-.*").matches("orders-1")


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\.", "(?:)", "^", "$", r"\b"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"])).map(lambda x: f"(?:{x[0]}){x[1]}"),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
    ),
    max_leaves=8,
)


@given(pattern=PATTERNS, text=st.text("ab.", max_size=8))
def test_results_equal_those_of_another_engine(pattern: str, text: str) -> None:
    assert Pattern(pattern).matches(text) is (re.compile(pattern, re.ASCII).fullmatch(text) is not None)


HARD = [
    "(a+)+b",
    "(a|a)*b",
    "(a*)*b",
    "(a|b)*a(a|b){1000}",
    "(x+x+)+y",
    r"(?:[ab]|\b){0,900}x",
    "(?:a?){900}",
    "((a?){0,60}b?){0,20}",
    "(?i)[" + "".join(map(chr, range(0x4E00, 0x5500))) + "ab]{0,1000}",
    "(" * MAX_DEPTH + "a" + ")*|b" * MAX_DEPTH,
]


@pytest.mark.parametrize("pattern", HARD)
def test_work_for_each_character_is_bounded(pattern: str) -> None:
    """A backtracking engine would never finish: 2^1,000 ways."""
    compiled = Pattern(pattern)
    assert len(compiled._program) <= MAX_SIZE + 1
    text = "ab" * 50 + "a" * 900
    compiled.matches(text)
    assert compiled.work <= (len(text) + 1) * (2 * len(compiled._program) + len(pattern) + 1)


@pytest.mark.parametrize("pattern", HARD)
def test_caller_may_pause_within_a_name(pattern: str) -> None:
    compiled = Pattern(pattern)
    names = ["ab" * 300, "b" * 300, "a" * 300]
    before, found = compiled.work, []
    for name in matching(compiled, names, str):
        if name is None:
            assert compiled.work - before <= 2 * TURN_WORK
            before = compiled.work
        else:
            found.append(name)
    assert found == [name for name in names if Pattern(pattern).matches(name)]


def test_states_that_a_pattern_keeps_are_bounded() -> None:
    compiled = Pattern("(a|b)*a(a|b){1000}")
    random = Random(7)
    largest = 0
    for _ in range(8):
        compiled.matches("".join(random.choice("ab") for _ in range(1000)))
        kept = sum(len(each.instructions) + 12 * len(each.steps) for each in compiled._kept.values())
        largest = max(largest, kept)
    assert MAX_KEPT / 4 < largest <= MAX_KEPT + MAX_SIZE
    assert compiled.matches("a" * 1001)
    assert not compiled.matches("b" * 1001)


def test_known_names_cost_one_look_up_for_each_character() -> None:
    """A list of topics is matched again whenever it changes."""
    compiled = Pattern("team-[a-d]\\.(orders|returns)\\..*")
    names = [f"team-{'abcdefgh'[i % 8]}.{'orders' if i % 3 else 'users'}.{i:06d}" for i in range(10_000)]
    expected = {name for name in names if name[5] in "abcd" and "orders" in name}
    assert set(matching(compiled, names, str)) - {None} == expected
    before = compiled.work
    assert set(matching(compiled, names, str)) - {None} == expected
    assert compiled.work - before <= sum(map(len, names))


def test_long_list_of_names_is_a_pattern() -> None:
    names = [f"department.team.orders-{i}" for i in range(120)]
    compiled = Pattern("|".join(map(re.escape, names)))
    assert [name for name in [*names, "department", "orders-1"] if compiled.matches(name)] == names


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_is_rejected(pattern: str) -> None:
    with suppress(ProtocolError):
        assert Pattern(pattern).matches("some-transactional.id_1") in (True, False)
