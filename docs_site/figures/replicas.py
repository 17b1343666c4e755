"""Draw the log end offsets and high watermarks of a leader and of a follower that stops for a while."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import NamedTuple

from docs_site import svg
from docs_site.figures.watch import Line, brokers_at_debug, lines_of
from oncelog import Admin, Producer
from oncelog.stories.cluster import Cluster
from oncelog.stories.stage import SMALL

TOPIC = "payments"
MOVED = re.compile(rf"{TOPIC}-0 \(\w+\): log end offset (\d+), high watermark (\d+)")
LAG_MS = 3_000
BETWEEN_S, STEADY_S = 0.05, 1.5
"""The time between two records, and the time from a change of the in-sync replicas to the next event."""
WIDTH, HEIGHT, LEFT, TOP = 640, 260, 56, 84


class Sample(NamedTuple):
    """The offsets of a replica, and the time in seconds since the start of the run."""

    at: float
    log_end: int
    high_watermark: int


class Run(NamedTuple):
    """The samples by broker, the ids of the leader and of the stopped broker, and the times of the events."""

    samples: dict[int, list[Sample]]
    leader: int
    stopped: int
    stop_at: float
    resume_at: float
    end_at: float


def run() -> Run:
    """Send records to three replicas, stop a follower, and let it continue."""
    with brokers_at_debug(), Cluster({**SMALL, "replica.lag.time.max.ms": LAG_MS}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(TOPIC, 1, replication_factor=3)
        leader, _ = cluster.leader_and_isr(TOPIC)
        stopped = leader % 3 + 1
        began, times = time.time(), []

        def send_until(in_sync: int) -> None:
            """Send records until `in_sync` replicas are in sync, and for `STEADY_S` more. Note the time."""
            cluster.wait_for(lambda: send() and len(cluster.leader_and_isr(TOPIC)[1]) == in_sync, "in-sync replicas")
            until = time.time() + STEADY_S
            while time.time() < until:
                send()
            times.append(time.time() - began)

        with Producer(cluster.address(leader), acks=1, enable_idempotence=False, linger_ms=0) as producer:

            def send() -> bool:
                producer.send(TOPIC, "x")
                time.sleep(BETWEEN_S)
                return True

            send_until(3)
            cluster.pause(stopped)
            send_until(2)
            cluster.resume(stopped)
            send_until(3)
        lines = lines_of(cluster.log())
    samples = {broker: list(_samples(lines, broker, began)) for broker in (leader, stopped)}
    return Run(samples, leader, stopped, *times)


def _samples(lines: list[Line], broker: int, began: float) -> Iterator[Sample]:
    yield Sample(0.0, 0, 0)
    for line in lines:
        if line.broker == broker and (found := MOVED.search(line.text)):
            yield Sample(line.at - began, int(found[1]), int(found[2]))


def replicas() -> str:
    """Make a run, and return its figure."""
    return drawing(run())


def drawing(found: Run) -> str:
    """Return the figure of a run: four offsets over time."""
    highest = max(sample.log_end for samples in found.samples.values() for sample in samples)
    scale = Scale(found.end_at, highest)
    left, right = scale.x(found.stop_at), scale.x(found.resume_at)
    parts = [
        svg.label(16, 26, "Log end offset and high watermark while a follower is stopped", kind="title"),
        svg.bar(left, TOP, right - left, HEIGHT, "shade"),
        svg.label((left + right) / 2, TOP + HEIGHT - 10, "the follower is stopped", anchor="middle", kind="small"),
        svg.line(LEFT, TOP + HEIGHT, LEFT + WIDTH, TOP + HEIGHT),
    ]
    parts += [
        svg.label(scale.x(second), TOP + HEIGHT + 18, f"{second} s", anchor="middle", kind="small")
        for second in range(0, int(found.end_at) + 1, 2)
    ]
    parts += [
        svg.label(LEFT - 8, scale.y(offset) + 4, str(offset), anchor="end", kind="small")
        for offset in range(0, highest + 1, 50)
    ]
    x = float(LEFT)
    for text, broker, field, kind in (
        ("leader: log end", found.leader, "log_end", "curve-first"),
        ("leader: high watermark", found.leader, "high_watermark", "curve-second"),
        ("follower: log end", found.stopped, "log_end", "curve-third"),
        ("follower: high watermark", found.stopped, "high_watermark", "curve-fourth"),
    ):
        points = [(sample.at, getattr(sample, field)) for sample in found.samples[broker]]
        parts.append(f'<path class="{kind}" d="{scale.steps(points, found.end_at)}"/>')
        parts += [svg.line(x, 50, x + 20, 50, kind), svg.label(x + 26, 54, text, kind="small")]
        x += 42 + 6 * len(text)
    return svg.document(LEFT + WIDTH + 30, TOP + HEIGHT + 34, parts, "Offsets of a leader and a follower over time")


class Scale(NamedTuple):
    """Convert times and offsets to coordinates in the figure."""

    end_at: float
    highest: int

    def x(self, at: float) -> float:
        """Return the x coordinate of a time."""
        return LEFT + WIDTH * min(at / self.end_at, 1.0)

    def y(self, offset: float) -> float:
        """Return the y coordinate of an offset."""
        return TOP + HEIGHT * (1 - offset / self.highest)

    def steps(self, points: list[tuple[float, int]], end_at: float) -> str:
        """Return the SVG path through the samples."""
        parts = [f"M{self.x(points[0][0]):.1f} {self.y(points[0][1]):.1f}"]
        parts += [f"L{self.x(at):.1f} {self.y(offset):.1f}" for at, offset in points[1:] if at <= end_at]
        return " ".join(parts)
