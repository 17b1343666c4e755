"""Measure the console with 5,000 partitions: its first paint, its updates, its memory, and what it asks the broker.

scripts/bench --console [--topics N] [--partitions N] [--groups N] [--seconds N] [--commits N]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.connections import memory
from benchmarks.servers import cpu_seconds
from oncelog import Admin, Producer
from support.consoles import ConsoleProcess
from support.servers import OncelogCluster

TOPIC = "watched"
PAGES = (
    *("/", "/topics", "/topics/topic-0", f"/topics/{TOPIC}/0", f"/topics/{TOPIC}/0/messages", "/transactions"),
    *(f"/producers?topic={TOPIC}", "/groups", "/group?id=group-0", "/settings"),
)
"""One page for each of ten viewers."""
COST = re.compile(r"([\d.]+) requests and")


def fill(bootstrap: str, topics: int, partitions: int, groups: int) -> None:
    """Create the topics, and groups with committed offsets."""
    with Admin(bootstrap) as admin:
        admin.create_topics([f"topic-{number}" for number in range(topics)], partitions=partitions)
        admin.create_topics(TOPIC, partitions=1)
        for number in range(groups):
            admin.set_offsets(f"group-{number}", {("topic-0", index): 0 for index in range(min(10, partitions))})
    with Producer(bootstrap) as producer:
        for number in range(1000):
            producer.send(TOPIC, f"{number}".encode())


def first_paints(console: ConsoleProcess) -> Iterator[tuple[str, float, bool]]:
    """Yield each page, the ms until a browser has its HTML, and whether its content was in it."""
    for page in PAGES:
        begun = time.perf_counter()
        answer = console.get(page, **{"Sec-Fetch-Mode": "navigate"})
        took = (time.perf_counter() - begun) * 1000
        assert answer.status == 200, (page, answer.status)
        yield page, took, "<h1>Loading" not in answer.body


def updates(console: ConsoleProcess, bootstrap: str, commits: int) -> list[float]:
    """Return the ms from each commit of a transaction to the event that shows its high watermark."""
    arrived: dict[int, float] = {}
    ready = threading.Event()

    def read() -> None:
        for event in console.events(f"/topics/{TOPIC}/0"):
            ready.set()
            for found in re.findall(r">HW</abbr></dt><dd>([^<]+)", event["html"]):
                arrived.setdefault(int(re.sub(r"\D", "", found)), time.perf_counter())

    threading.Thread(target=read, daemon=True).start()
    ready.wait(60)
    took = []
    with Producer(bootstrap, transactional_id="bench-console") as producer, Admin(bootstrap) as admin:
        for number in range(commits):
            with producer.transaction():
                producer.send(TOPIC, f"{number}".encode())
            done = time.perf_counter()
            end = admin.describe_topics(TOPIC)[0].partitions[0].high_watermark
            limit = done + 30
            while end not in arrived and time.perf_counter() < limit:
                time.sleep(0.005)
            took.append((arrived[end] - done) * 1000)
            time.sleep(0.3 + number % 7 / 10)  # at different moments of the console's interval
    return took


def viewers(console: ConsoleProcess, broker: int, seconds: float) -> dict[str, float]:
    """Let ten browsers watch ten pages. Return what that costs."""

    def watch(page: str) -> None:
        for _ in console.events(page):
            pass

    for page in PAGES:
        threading.Thread(target=watch, args=(page,), daemon=True).start()
    time.sleep(10)
    own = console.process.pid
    before, own_before, broker_before = time.perf_counter(), cpu_seconds(own), cpu_seconds(broker)
    time.sleep(seconds)
    lasted = time.perf_counter() - before
    shown = COST.search(console.get("/settings").body)
    assert shown
    return {
        "requests per viewer and second": round(float(shown[1]) / len(PAGES), 2),
        "CPU of the console, %": round((cpu_seconds(own) - own_before) / lasted * 100, 1),
        "CPU of the broker, %": round((cpu_seconds(broker) - broker_before) / lasted * 100, 1),
        "memory of the console, MB": round(memory(own) / 1024),
    }


def main() -> None:
    """Measure, and print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--commits", type=int, default=20)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = OncelogCluster(Path(folder, "broker"))
        try:
            fill(cluster.bootstrap, chosen.topics, chosen.partitions, chosen.groups)
            Path(folder, "console").mkdir()
            console = ConsoleProcess(cluster.bootstrap, Path(folder, "console"))
            idle = round(memory(console.process.pid) / 1024)
            paints = list(first_paints(console))
            took = updates(console, cluster.bootstrap, chosen.commits)
            found: dict[str, Any] = {
                "partitions": chosen.topics * chosen.partitions,
                "groups": chosen.groups,
                "memory of an idle console, MB": idle,
                "first paint, ms": {page: round(ms) for page, ms, _ in paints},
                "filled later": [page for page, _, complete in paints if not complete],
                "update after a commit, ms": {
                    "median": round(statistics.median(took)),
                    "most": round(max(took)),
                },
                "ten viewers": viewers(console, cluster.broker_pid(1), chosen.seconds),
            }
            console.stop()
        finally:
            cluster.stop()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
