"""kcat's format tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.cli.consume import as_json
from oncelog.cli.record_format import Shown, compile_format

SHOWN = Shown("orders", 3, 42, 1000, b"key", b"value\xff", (("a", b"1"), ("b", None)))
EMPTY = Shown("orders", 3, 43, -1, None, None)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t[%p]@%o", b"orders[3]@42"),
        ("%k=%s\\n", b"key=value\xff\n"),
        ("%K %S", b"3 6"),
        ("%R", b"\x00\x00\x00\x06"),
        ("%T %h", b"1000 a=1,b=NULL"),
        ("100%%", b"100%"),
        ("\\t\\r\\x41\\\\\\q", b"\t\rA\\q"),
        ("\\x41b\\x9|", b"\x1b\x09|"),
        ("\\101\\7.\\012.\\0", b"e\x07.\n.\x00"),
        ("é%%", "é%".encode()),
        ("%k\\", b"key\\"),
        ("", b""),
    ],
)
def test_tokens(template: str, expected: bytes) -> None:
    assert compile_format(template)(SHOWN) == expected


def test_length_of_null_is_minus_one() -> None:
    assert compile_format("%K %S %k %s|")(EMPTY) == b"-1 -1  |"
    assert compile_format("%R")(EMPTY) == b"\xff\xff\xff\xff"


def test_unknown_token() -> None:
    for text in ("%q", "%", "x%"):
        with pytest.raises(ValueError, match=f"unknown token %{text.partition('%')[2]}"):
            compile_format(text)


@given(st.text(alphabet=st.characters(exclude_characters="%\\", exclude_categories=["Cs"])))
def test_text_without_tokens_is_unchanged(text: str) -> None:
    assert compile_format(text)(SHOWN) == text.encode()


def test_json_preserves_bytes_that_are_not_text() -> None:
    assert as_json(SHOWN) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestamp": 1000,
        "key": "key",
        "value": {"base64": "dmFsdWX/"},
        "headers": [["a", "1"], ["b", None]],
    }
