"""The console in a real Chromium: a story, and all pages for everybody.

On three brokers of ours, on three with `--secure`, whose console asks for a token, and on Apache Kafka.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.net.properties import parse_properties
from support.chromium import Chromium
from support.consoles import ConsoleProcess
from support.fixtures import SHARED
from support.servers import ReplicatedCluster

SCRIPT = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
NARROW = 390
TOKEN = "a token of the tests of the console"


class Watched(NamedTuple):
    """A cluster: its address, what clients and the console need to log in, and what browsers enter (`token`)."""

    bootstrap: str
    options: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    token: str = ""


@pytest.fixture(scope="module", params=["oncelog-3", "secured", "apache-kafka"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Return three brokers of ours, with or without logins, or Apache Kafka."""
    if request.param != "secured":
        yield Watched(request.getfixturevalue(SHARED[request.param]).bootstrap)
        return
    made = ReplicatedCluster(tmp_path_factory.mktemp("secured"), arguments=("--secure",))
    file = made.data / "secure" / "client.properties"
    yield Watched(made.bootstrap, parse_properties(file.read_text()), ("--command-config", str(file)), TOKEN)
    made.stop()


@pytest.fixture(scope="module")
def console(cluster: Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """Run a console of these brokers."""
    folder, env = tmp_path_factory.mktemp("console"), {"ONCELOG_CONSOLE_TOKEN": cluster.token}
    made = ConsoleProcess(cluster.bootstrap, folder, "--allow-changes", *cluster.arguments, env=env)
    yield made
    assert made.stop() == 0, made.process.output()
    assert "Traceback" not in made.process.output()


@pytest.fixture
def browser(cluster: Watched, console: ConsoleProcess, tmp_path: Path) -> Iterator[Chromium]:
    """Run a browser, which has logged in if that is needed."""
    with Chromium(tmp_path) as made:
        if cluster.token:
            made.go(f"{console.address}/topics")
            assert made.script("location.pathname") == "/login"
            made.script(f"document.querySelector('input[name=token]').value = {json.dumps(cluster.token)}")
            made.click("main button")
            made.until("location.pathname === '/topics'")
        yield made


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the script of axe-core, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    assert npm is not None
    subprocess.run([npm, "install", "--no-audit", "--no-fund", "axe-core@4"], cwd=folder, check=True, timeout=300)
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()


def test_open_transaction_is_found_and_ended_in_the_browser(
    cluster: Watched, console: ConsoleProcess, browser: Chromium, name: str
) -> None:
    with Admin(cluster.bootstrap, cluster.options) as admin:
        admin.create_topics(name, partitions=3)
    holder = f"{name}-holder"
    group = {"group_id": name, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with (
        Consumer(cluster.bootstrap, cluster.options, **group) as reader,
        suppress(errors.KafkaError),
        Producer(cluster.bootstrap, cluster.options, transactional_id=holder) as producer,
        producer.transaction() as transaction,
    ):
        browser.go(f"{console.address}/topics/{name}/0")
        browser.until("document.body.dataset.live === 'on'")
        for number in range(2):
            transaction.send(name, f"open {number}", partition=0).result()
        with Producer(cluster.bootstrap, cluster.options) as other:
            other.send(name, "after", partition=0).result()
        # The page changes without a reload: the LSO stands still, and its holder has a name.
        browser.until("document.body.innerText.includes('read_committed consumers wait at offset 0')")
        assert holder in browser.text()
        browser.until("document.querySelectorAll('.span.open').length === 1")
        reader.assign([(name, 0)])
        assert reader.poll(1) == []
        with browser.other_tab():
            browser.go(f"{console.address}/transactions")
            browser.until(f"document.body.innerText.includes({json.dumps(holder)})")
            browser.go(f"{console.address}/transaction?{urlencode({'id': holder})}")
            browser.click("a.button")
            browser.until("document.body.innerText.includes('Its producer is fenced')")
            assert "at most 3 in the partitions below" in browser.text()
            browser.click("button.danger")
            browser.until("location.pathname === '/transaction' && !document.body.innerText.includes('Ongoing')")
        browser.until("document.querySelectorAll('.span.aborted').length === 1")
        browser.until("!document.body.innerText.includes('read_committed consumers wait')")
        assert [record.value for record in reader.poll(60)] == [b"after"]
    assert list(browser.complaints()) == []
    assert all(address.startswith((console.address, "about:")) for address in browser.requested())


def pages_of(cluster: Watched, name: str) -> list[str]:
    """Fill a topic with something for each page, and return the addresses of all pages."""
    with Admin(cluster.bootstrap, cluster.options) as admin:
        admin.create_topics(name, partitions=2)
        with Producer(cluster.bootstrap, cluster.options) as producer:
            for number in range(20):
                producer.send(name, SCRIPT, key=f"key {number}", partition=0, headers=[("trace", SCRIPT.encode())])
        with Producer(cluster.bootstrap, cluster.options, transactional_id=f"{name}-{SCRIPT}") as producer:
            with producer.transaction() as transaction:
                transaction.send(name, "committed", partition=0)
            with suppress(KeyError), producer.transaction() as transaction:
                transaction.send(name, "aborted", partition=0).result()
                raise KeyError
        admin.set_offsets(f"{name}-{SCRIPT}", {(name, 0): 3})
    strange = urlencode({"id": f"{name}-{SCRIPT}"})
    return [
        *(
            "/",
            "/topics",
            f"/topics/{name}",
            f"/topics/{name}/0",
            f"/topics/{name}/0?span=25",
            f"/topics/{name}/produce",
        ),
        *(f"/topics/{name}/0/messages?control=1", f"/topics/{name}/0/producers", f"/topics/{name}/0/abort?producer=1"),
        *("/transactions?all=1", f"/transaction?{strange}", f"/transaction/end?{strange}", "/producers", "/groups"),
        *(
            f"/group?{strange}",
            f"/group/reset?{strange}&to=earliest",
            "/topics/missing",
            "/login",
            "/sinks",
            "/sink?prefix=missing",
            "/access",
            "/settings",
        ),
    ]


def test_every_page_is_for_everybody(
    cluster: Watched, console: ConsoleProcess, browser: Chromium, axe: str, name: str
) -> None:
    pages = pages_of(cluster, name)
    found = []
    for page in pages:
        browser.go(console.address + page)
        browser.until("!document.getElementById('live') || document.body.dataset.live !== 'waiting'")
        for scheme in ("light", "dark"):
            browser.set_scheme(scheme)
            browser.script(axe)
            violations = browser.script(
                "axe.run().then(r => r.violations.map(v => [v.id, v.help, v.nodes.map(n => n.html).slice(0, 3)]))"
            )
            found += [(page, scheme, *each) for each in violations]
        browser.resize(NARROW, 800)
        width = browser.script("document.documentElement.scrollWidth")
        if width > NARROW:
            found.append((page, f"{width} px wide"))
        browser.resize(1280, 900)
        browser.set_scheme("light")
        assert browser.script("document.title") != "owned", page
    assert found == [], "\n".join(map(str, found))
    complaints = [each for each in browser.complaints() if "missing" not in each]
    assert complaints == []
