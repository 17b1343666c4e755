"""Scrape a broker's metrics, and parse them as Prometheus does."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from support.processes import wait_until
from support.servers import OncelogCluster

Key = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Key, float]


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Send one request, and return the status and the text of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scraped(port: int) -> Samples:
    """Return the value of each series of one broker."""
    status, text = get(port, "/metrics")
    assert status == 200
    return parsed(text)


def parsed(text: str) -> Samples:
    """Return the value of each series in a text. No series may be there twice."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert _key(sample) not in found, "a series is there twice"
            found[_key(sample)] = sample.value
    return found


def scraped_all(ports: Iterable[int]) -> Samples:
    """Return the group series of all brokers of a cluster. No series may have two brokers."""
    found: Samples = {}
    for port in ports:
        for key, value in scraped(port).items():
            if key[0].startswith("kafka_consumergroup_"):
                assert key not in found, f"two brokers have {key}"
                found[key] = value
    return found


def series(name: str, **labels: object) -> Key:
    """Return the key of a series."""
    return name, tuple(sorted((label, str(value)) for label, value in labels.items()))


def _key(sample: Sample) -> Key:
    return sample.name, tuple(sorted(sample.labels.items()))


def metrics_ports(cluster: OncelogCluster) -> dict[int, int]:
    """Return the ports of metrics by broker, for `metrics.port=0`. A restarted broker has another one."""
    return {
        int(found[1]): int(found[2])
        for line in cluster.process.stderr_path.read_text(errors="replace").splitlines()
        if (found := re.search(r"\[Broker id=(\d+)\].*serving metrics at http://127\.0\.0\.1:(\d+)/metrics", line))
    }


def lag(samples: Samples, group: str, topic: str, partition: int = 0) -> float | None:
    """Return the lag of a group, or None if there is no series."""
    return samples.get(series("kafka_consumergroup_lag", consumergroup=group, topic=topic, partition=partition))


def wait_for_lag(port: int, group: str, topic: str, value: float) -> Samples:
    """Scrape a broker until a group has this lag, and return the last samples."""
    last: list[Samples] = []

    def reached() -> bool:
        last[:] = [scraped(port)]
        return lag(last[0], group, topic) == value

    wait_until(reached, f"the lag of {group} is {value}")
    return last[0]
