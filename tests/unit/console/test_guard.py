"""The rules for requests to the console."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncelog.console.guard import Guard, RefusedError, is_loopback

HOST = {"host": "localhost:8080"}


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "10.1.2.3", "console.example:8"]
)
def test_own_names_and_numbers_are_answered(host: str) -> None:
    Guard(frozenset({"console.example"})).check("GET", "/", {"host": host})


@given(st.text(max_size=40))
def test_any_other_host_is_refused_or_a_number(host: str) -> None:
    answered = True
    try:
        Guard().check("GET", "/", {"host": host})
    except RefusedError:
        answered = False
    assert not answered or "localhost" in host.lower() or any(each.isdigit() for each in host) or ":" in host


@given(st.text(max_size=60))
def test_no_other_origin_may_post(origin: str) -> None:
    if origin.lower().rstrip("/") in ("http://localhost:8080", "https://localhost:8080"):
        return
    with pytest.raises(RefusedError):
        Guard().check("POST", "/", {**HOST, "origin": origin, "sec-fetch-site": "same-origin"})


def test_token_is_compared_whole_and_never_shown() -> None:
    guard = Guard(token="secret of sixteen")
    assert guard.knows("secret of sixteen")
    assert not guard.knows("secret of sixtee")
    assert not guard.knows("\ud800")
    assert not Guard().knows("")
    assert "secret" not in repr(guard)
    assert "secret" not in guard.session()


def test_cookie_of_another_token_is_no_session() -> None:
    one, other = Guard(token="a" * 16), Guard(token="b" * 16)
    assert one.logged_in("/", {"cookie": f"x=1; oncelog_console={one.session()}"})
    assert not one.logged_in("/", {"cookie": f"oncelog_console={other.session()}"})
    assert not one.logged_in("/", {"cookie": "oncelog_console=é"})
    foreign = 'settings={"a":1}; b="; c'
    assert one.logged_in("/", {"cookie": f"{foreign}; oncelog_console={one.session()}"}), "of another port of the host"
    assert one.logged_in("/static/console.css", {})


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a.b", False)]
)
def test_only_addresses_of_this_machine_need_no_login(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize("host", ["127.0.0.1/login?", "127.0.0.1#", "x@127.0.0.1", "127.0.0.1\\login"])
def test_host_that_is_more_than_a_host_is_refused(host: str) -> None:
    with pytest.raises(RefusedError):
        Guard().check("GET", "/", {"host": host})
