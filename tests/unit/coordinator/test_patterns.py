"""Regular expressions of clients: RE2's results, in linear time for every pattern."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.coordinator.patterns import MAX_LENGTH, Pattern
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
    ],
)
def test_whole_text_must_match(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in others if compiled.matches(text)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "unmatched '('"),
        ("a)", "unmatched ')'"),
        ("[a", "unexpected end"),
        ("a\\", "unexpected end"),
        ("*a", "nothing to repeat"),
        ("a|+", "nothing to repeat"),
        ("a**", "multiple repeat"),
        ("a++", "multiple repeat"),
        ("a{3,2}", "invalid repetition"),
        ("a{1001}", "invalid repetition"),
        ("[b-a]", "invalid range"),
        ("[[:nonsense:]]", "unknown class"),
        ("(?=a)", "not supported"),
        ("(?!a)", "not supported"),
        ("(?<=a)b", "not supported"),
        (r"(a)\1", "not supported"),
        (r"\pL", "not supported"),
        (r"\bx", "not supported"),
        (r"\x{zz}", "invalid \\x"),
        (r"\x{110000}", "invalid \\x"),
        ("(?P<a-b>x)", "invalid group name"),
        ("((a{100}){100}){100}", "too large"),
        ("a" * (MAX_LENGTH + 1), "characters"),
        ("(" * 200 + ")" * 200, "too deeply"),
    ],
)
def test_unsupported_pattern_is_rejected_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=re.escape(reason)) as caught:
        Pattern(pattern)
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\w", r"\.", "(?:)", "^", "$"])
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


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*b", "(a|b)*a(a|b){100}", "(x+x+)+y"])
def test_work_grows_only_with_the_text(pattern: str) -> None:
    """A backtracking engine would never finish: 2^10,000 ways."""
    tests = 0
    compiled = Pattern(pattern)
    program = compiled._program
    for index, instruction in enumerate(program):
        if instruction.test is not None:

            def counted(character: str, test=instruction.test) -> bool:  # type: ignore[no-untyped-def]
                nonlocal tests
                tests += 1
                return bool(test(character))

            program[index] = instruction._replace(test=counted)
    text = "ab" * 50 + "a" * 9_900
    compiled.matches(text)
    assert tests <= len(text) * len(program)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_or_is_rejected(pattern: str) -> None:
    with suppress(ProtocolError):
        assert Pattern(pattern).matches("some-transactional.id_1") in (True, False)
