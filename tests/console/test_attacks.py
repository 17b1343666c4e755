"""Attacks on the console: other sites, records that are scripts, huge and damaged input, slow readers, dead brokers."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote, urlencode

import pytest

from oncelog import Admin, Producer
from support.consoles import ConsoleProcess
from support.processes import wait_until
from support.servers import Server

SCRIPT = "<script>document.title='owned'</script>"
TOKEN = "a token of a test, which nobody guesses"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"Origin": ""}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "none"}, 403),
        ({"Sec_Fetch_Site": ""}, 303),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_post_of_another_site_changes_nothing(
    console: ConsoleProcess, admin: Admin, name: str, headers: dict[str, str], status: int
) -> None:
    admin.create_topics(name, partitions=1)
    answer = console.post(f"/topics/{name}/produce", {"value": "x"}, **headers)
    assert answer.status == status, answer.text
    assert admin.end_offsets([(name, 0)])[name, 0] == (status == 303)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "", "localhost.evil.example", "[", "127.0.0.1.nip.io"]
)
def test_name_of_another_site_is_rejected(console: ConsoleProcess, host: str) -> None:
    assert console.request("GET", "/", {"Host": host}).status == 421


def test_page_of_another_site_may_link_but_not_read(console: ConsoleProcess) -> None:
    read = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    assert console.request("GET", "/?format=json", read).status == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert console.request("GET", "/", link).status == 200
    assert console.request("GET", "/", {**link, "Sec-Fetch-Dest": "document"}).status == 200
    assert console.request("GET", "/", {**link, "Sec-Fetch-Dest": "iframe"}).status == 403


@pytest.mark.parametrize("target", ["/", "/topics", "/nothing", "/static/console.js", "/topics/a/b/c", "/login"])
def test_every_response_restricts_what_a_page_may_do(console: ConsoleProcess, target: str) -> None:
    answer = console.get(target)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(
        r"<script(?! src=\"/static/)|\son\w+=|\sstyle=|<style", answer.body if "html" in target else ""
    )


def test_scripts_in_records_and_names_are_text(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    with Producer(server.bootstrap, transactional_id=f"{name}{SCRIPT}") as producer, producer.transaction() as open_one:
        headers = [(SCRIPT, SCRIPT.encode())]
        open_one.send(name, SCRIPT, key=SCRIPT, headers=headers).result()
        admin.set_offsets(f"{name}{SCRIPT}", {(name, 0): 0})
        strange = urlencode({"id": f"{name}{SCRIPT}"})
        pages = [
            f"/topics/{name}/0",
            f"/topics/{name}/0/messages",
            f"/topics/{name}/0/messages?{urlencode({'as': 'json', 'contains': SCRIPT, 'key': SCRIPT})}",
            f"/topics/{name}/0/producers",
            f"/topics?{urlencode({'q': SCRIPT, 'sort': SCRIPT})}",
            f"/topics/{quote(SCRIPT, safe='')}",
            f"/{quote(SCRIPT)}",
            "/transactions",
            f"/transaction?{strange}",
            f"/transaction/end?{strange}",
            "/groups",
            f"/group?{strange}",
            f"/group/reset?{strange}&{urlencode({'to': 'offset', 'value': SCRIPT})}",
            f"/login?{urlencode({'next': SCRIPT})}",
        ]
        for page in pages:
            answer = console.get(page)
            assert SCRIPT not in answer.body, page
            assert "<script>" not in answer.body.lower(), page
        shown = [console.get(page).text for page in pages[:2]]
        assert all(SCRIPT in text for text in shown)
        for event in (next(console.events(page)) for page in pages[:2]):
            assert SCRIPT not in event["html"]


def test_huge_record_is_cut(console: ConsoleProcess, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, partitions=1)
    with Producer(server.bootstrap) as producer:
        producer.send(name, b"\xff" * 900_000, headers=[(f"h{i}", b"v" * 100) for i in range(200)]).result()
    answer = console.get(f"/topics/{name}/0/messages")
    assert len(answer.body) < 60_000
    assert "878.9 KiB in all" in answer.text
    assert "150 more" in answer.text
    alone = console.get(f"/topics/{name}/0/messages?at=offset&offset=0&limit=1")
    assert len(alone.body) < 3_000_000
    assert console.get(f"/topics/{name}/0").status == 200


def test_record_that_nests_deeply_is_text(console: ConsoleProcess, admin: Admin, server: Server, name: str) -> None:
    admin.create_topics(name, partitions=1)
    with Producer(server.bootstrap) as producer:
        producer.send(name, "[" * 100_000).result()
    assert console.get(f"/topics/{name}/0/messages?at=offset&offset=0&limit=1&as=json").status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/version.py",
        "/static//etc/passwd",
        "/topics/..%2f..%2fetc",
        "/topics/x/99999999999999999999",
        "/topics/x/-1",
        "/%00",
    ],
)
def test_paths_lead_nowhere(console: ConsoleProcess, target: str) -> None:
    answer = console.get(target)
    assert answer.status in (400, 404), answer
    assert "import " not in answer.body


@pytest.mark.parametrize(
    "query",
    [
        "page=99999999999999999999999",
        "page=-1&sort=nothing&desc=%00",
        "q=" + "x" * 3000,
        "span=0&from=-5",
        "span=99999999999999999999&from=99999999999999999999999",
        "at=time&time=yesterday",
        "at=offset&offset=9999999999999999999999&limit=100000",
        "at=%F0%9F%92%A5&as=%00&limit=NaN",
    ],
)
def test_strange_queries_show_a_page(console: ConsoleProcess, admin: Admin, name: str, query: str) -> None:
    admin.create_topics(name, partitions=1)
    for page in ("", "/0", "/0/messages", "/0/producers"):
        assert console.get(f"/topics/{name}{page}?{query}").status == 200, page


def test_long_addresses_and_large_posts_are_rejected(console: ConsoleProcess, admin: Admin, name: str) -> None:
    assert console.get("/topics?q=" + "x" * 5000).status == 414
    admin.create_topics(name, partitions=1)
    assert console.post(f"/topics/{name}/produce", {"value": "x" * 3_000_000}).status == 413
    assert console.post(f"/topics/{name}/produce", {f"f{i}": "" for i in range(100)}).status == 400
    assert console.request("DELETE", "/topics").status == 405
    assert admin.end_offsets([(name, 0)])[name, 0] == 0


def test_reader_that_does_not_read_delays_no_other(
    console: ConsoleProcess, admin: Admin, server: Server, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    stuck = [console.listen(f"/topics/{name}/0") for _ in range(5)]
    events = console.events(f"/topics/{name}/0")
    next(events)
    with Producer(server.bootstrap) as producer:
        for number in range(5):
            producer.send(name, str(number)).result()
            wait_until(lambda end=number + 1: f"LEO {end}<" in next(events)["html"], "the page has the record")
    for each in stuck:
        each.close()


HALF_A_FORM = (
    "POST /login HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
    "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n\r\na="
)


@pytest.mark.parametrize(
    "begin",
    ["", "GET / HTTP/1.1\r\nHost: ", HALF_A_FORM, "GET /login HTTP/1.1\r\nHost: {host}\r\n\r\n" + HALF_A_FORM],
    ids=["nothing", "half a head", "half a form", "half a form behind a request"],
)
def test_request_that_does_not_arrive_loses_its_connection(console: ConsoleProcess, begin: str) -> None:
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as connection:
        connection.sendall(begin.format(host=console.host).encode())
        with suppress(ConnectionResetError):
            while connection.recv(1000):
                pass


def test_viewers_are_bounded(console: ConsoleProcess) -> None:
    viewers = [console.listen("/topics") for _ in range(230)]
    try:
        for each in viewers[:10]:
            assert each.recv(12) == b"HTTP/1.1 200"
        assert console.get("/").status == 200
    finally:
        for each in viewers:
            each.close()


def test_pages_outlive_their_broker(
    own_server: Server, start_console: Callable[..., ConsoleProcess], name: str
) -> None:
    with Admin(own_server.bootstrap) as admin:
        admin.create_topics(name, partitions=1)
        admin.set_offsets(name, {(name, 0): 0})
    console = start_console(own_server.bootstrap)
    pages = [
        *("/", "/topics", f"/topics/{name}", f"/topics/{name}/0", f"/topics/{name}/0/messages"),
        *(f"/topics/{name}/0/producers", "/transactions", "/producers", "/groups", f"/group?id={name}"),
    ]
    watched = {page: console.events(page) for page in pages}
    before = {page: next(events) for page, events in watched.items()}
    assert all(event["notice"] == "" for event in before.values())
    own_server.stop()
    for page, events in watched.items():
        notice = next(event for event in events if event["notice"])
        assert notice["html"] == before[page]["html"] or "<h1>" in notice["html"]
        events.close()  # type: ignore[attr-defined]
    fresh = start_console(own_server.bootstrap)
    answer = fresh.request("GET", "/?format=json")
    assert answer.status == 503
    assert fresh.get("/static/console.css").status == 200
    assert fresh.process.output().count("Traceback") == 0


def test_without_the_token_nothing_is_shown(
    start_console: Callable[..., ConsoleProcess], server: Server, admin: Admin, name: str
) -> None:
    admin.create_topics(name, partitions=1)
    console = start_console(server.bootstrap, "--host", "0.0.0.0", env={"ONCELOG_CONSOLE_TOKEN": TOKEN})
    console.host = f"127.0.0.1:{console.port}"
    console.address = f"http://{console.host}"
    assert console.get(f"/topics/{name}").headers["location"] == f"/login?{urlencode({'next': f'/topics/{name}'})}"
    assert console.request("GET", f"/topics/{name}?format=json").status == 401
    assert console.request("GET", f"/topics/{name}", {"Accept": "text/event-stream"}).status == 401
    assert console.post("/login", {"token": "wrong"}).status == 403
    assert console.post("/login", {"token": TOKEN}, Origin="http://evil.example").status == 403
    answer = console.post("/login?next=//evil.example", {"token": TOKEN})
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert TOKEN not in cookie
    session = cookie.partition(";")[0]
    assert console.get(f"/topics/{name}", Cookie=session).status == 200
    assert console.get(f"/topics/{name}", Cookie=session[:-1] + "x").status == 303
    assert console.get("/", Cookie='oncelog_console="\\377').status == 303
    produced = console.post(f"/topics/{name}/produce", {"value": "x"}, Cookie=session)
    assert produced.status == 403, "a console for other machines only reads"
    assert TOKEN not in console.process.output()
    left = console.post("/logout", {}, Cookie=session)
    assert (left.status, left.headers["location"]) == (303, "/login")
    assert "max-age=0" in left.headers["set-cookie"].lower()
