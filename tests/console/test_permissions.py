"""The console of a client that may see little, and of one that must log in."""

from __future__ import annotations

from collections.abc import Callable

from support.consoles import ConsoleProcess
from support.permissions import GuardedServer


def test_page_that_the_client_may_not_see_says_so(
    guarded: GuardedServer, start_console: Callable[..., ConsoleProcess]
) -> None:
    console = start_console(guarded.bootstrap)
    for page in ("/topics/secret", "/topics/secret/0", "/transaction?id=secret", "/group?id=secret"):
        answer = console.get(page)
        assert answer.status == 403, (page, answer.text)
        assert "Not authorized" in answer.text, page
    for page in ("/", "/topics", "/transactions", "/producers", "/groups"):
        assert console.get(page).status == 200, page
    post = console.post("/topics/secret/produce", {"value": "x"})
    assert post.status == 403
    assert "AUTHORIZATION_FAILED" in post.text
