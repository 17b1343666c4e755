"""Take the pictures of the console's page: `python -m docs_site.console_pictures [FOLDER]`.

Needs Debian's chromium. Runs three brokers and a console, and fills them. With a folder, save every page there: light
and dark, on a wide and on a narrow screen.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from docs_site.build import WRITTEN
from oncelog import Admin, Consumer, Producer
from support.chromium import Chromium
from support.consoles import ConsoleProcess
from support.servers import ReplicatedCluster

PAGES = {
    "cluster": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "partition": "/topics/orders/0",
    "messages": "/topics/orders/0/messages?control=1",
    "transactions": "/transactions?all=1",
    "transaction": "/transaction?id=checkout-7",
    "transaction-end": "/transaction/end?id=checkout-7",
    "producers": "/topics/orders/0/producers",
    "groups": "/groups",
    "group": "/group?id=billing",
    "group-reset": "/group/reset?id=reports&to=earliest",
    "sinks": "/sinks",
    "access": "/access",
    "settings": "/settings",
}
WIDE, NARROW = (1180, 800), (390, 800)
KEPT = {"partition": "console-partition", "transactions": "console-transactions"}
"""The pictures that the documentation has, with the names of their files."""


@contextlib.contextmanager
def filled(bootstrap: str) -> Iterator[None]:
    """Write records of all kinds. Inside the block, a transaction is open."""
    with Admin(bootstrap) as admin:
        for topic, partitions in (("orders", 3), ("payments", 2), ("audit", 1)):
            admin.create_topics(topic, partitions=partitions)
        with Producer(bootstrap) as producer:
            for number in range(12):
                producer.send("orders", f'{{"order": {number}}}', key=f"customer {number % 3}", partition=0)
        for worker in range(5):
            with Producer(bootstrap, transactional_id=f"etl-{worker}") as producer:
                with producer.transaction() as transaction:
                    for number in range(6 + worker):
                        transaction.send("orders", f"copy {number}", partition=0)
                with contextlib.suppress(KeyError), producer.transaction() as transaction:
                    for number in range(3):
                        transaction.send("orders", f"dropped {number}", partition=0)
                    producer.flush()
                    raise KeyError
        options = {"group.id": "billing", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        with (
            Consumer(bootstrap, options) as consumer,
            Producer(bootstrap, transactional_id="checkout-7") as producer,
            producer.transaction() as transaction,
        ):
            consumer.subscribe(["orders"])
            while not consumer.poll(5):
                pass
            consumer.commit({("orders", 0): 58})
            admin.set_offsets("reports", {("orders", 0): 31})
            for number in range(6):
                transaction.send("orders", f"open {number}", partition=0)
            transaction.send("payments", "open", partition=0)
            producer.flush()
            with Producer(bootstrap) as other:
                for number in range(8):
                    other.send("orders", f"after {number}", partition=0)
            yield


def main() -> int:
    """Take the pictures. Return the exit status."""
    everywhere = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "console").mkdir()
        cluster = ReplicatedCluster(root)
        console = ConsoleProcess(cluster.bootstrap, root / "console")
        try:
            with filled(cluster.bootstrap), Chromium(root, width=WIDE[0], height=WIDE[1]) as browser:
                for name in PAGES if everywhere else KEPT:
                    _take(browser, console.address + PAGES[name], name, everywhere)
        finally:
            console.stop()
            cluster.stop()
    return 0


def _take(browser: Chromium, address: str, name: str, folder: Path | None) -> None:
    browser.go(address)
    browser.until("!document.getElementById('live') || document.body.dataset.live === 'on'")
    if folder is None:
        browser.screenshot(WRITTEN / "images" / f"{KEPT[name]}.png", full=False)
        return
    for size, place in ((WIDE, "wide"), (NARROW, "narrow")):
        browser.resize(*size)
        for scheme in ("light", "dark"):
            browser.set_scheme(scheme)
            browser.screenshot(folder / f"{name}-{place}-{scheme}.png")
    browser.resize(*WIDE)


if __name__ == "__main__":
    sys.exit(main())
