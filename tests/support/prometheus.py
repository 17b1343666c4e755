"""A Prometheus that reads brokers, and its tool `promtool`. `scripts/conformance` fetches both from Debian.

They are in `$ONCELOG_PROMETHEUS`, otherwise in `.cache/prometheus/usr/bin`.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.processes import ManagedProcess, wait_until

ROOT = Path(__file__).resolve().parents[2]
JOB = "oncelog"


def tool(name: str) -> Path:
    """Return the path of `prometheus` or `promtool`."""
    folder = os.environ.get("ONCELOG_PROMETHEUS") or ROOT / ".cache" / "prometheus" / "usr" / "bin"
    path = Path(folder) / name
    assert path.exists(), f"{path} is missing; scripts/conformance fetches it"
    return path


def promtool(*arguments: str | Path) -> None:
    """Run promtool. Fail with its output if it finds errors."""
    done = subprocess.run([tool("promtool"), *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus that reads its targets every second, and evaluates a file of rules as often."""

    def __init__(self, directory: Path, ports: Sequence[int], rules: Path, labels: Mapping[str, str]) -> None:
        directory.mkdir(parents=True)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": JOB,
                    "static_configs": [
                        {
                            "targets": [f"127.0.0.1:{port}"],
                            "labels": {key: value.format(number=number) for key, value in labels.items()},
                        }
                        for number, port in enumerate(ports)
                    ],
                }
            ],
        }
        path = directory / "prometheus.yml"
        path.write_text(json.dumps(config))
        self.process = ManagedProcess(
            [
                tool("prometheus"),
                f"--config.file={path}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            directory,
            "prometheus",
        )
        self._address = ""
        self.process.wait_for(self._listens, "Prometheus listens")
        wait_until(lambda: all(each["health"] == "up" for each in self._targets()), "all brokers are read")

    def _listens(self) -> bool:
        if not self._address:
            inodes = self._sockets()
            for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    self._address = f"127.0.0.1:{int(fields[1].rpartition(':')[2], 16)}"
        try:
            return bool(self._address) and self._get("/-/ready") is not None
        except (urllib.error.URLError, ConnectionError):
            return False

    def _sockets(self) -> set[str]:
        """Return the inodes of the process's sockets, because Prometheus does not print the port that it has chosen."""
        found = set()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                link = os.readlink(entry)
            except FileNotFoundError:
                continue
            if link.startswith("socket:["):
                found.add(link.removeprefix("socket:[").removesuffix("]"))
        return found

    def _get(self, path: str, **query: str) -> str:
        url = f"http://{self._address}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            text: str = response.read().decode()
            return text

    def _targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._get("/api/v1/targets"))["data"]["activeTargets"]
        return found

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now: `metric` has the labels, `value` the time and the number."""
        try:
            answer = json.loads(self._get("/api/v1/query", query=expression))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> dict[str, dict[str, Any]]:
        """Return the alerts that fire, by name, with labels and annotations. Of alerts with one name, return one."""
        alerts = json.loads(self._get("/api/v1/alerts"))["data"]["alerts"]
        return {each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"}

    def stop(self) -> None:
        """End the process."""
        self.process.stop()
