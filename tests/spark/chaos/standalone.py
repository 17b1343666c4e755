"""A standalone Spark cluster on this machine: a Master and Workers from the installed PySpark's jars."""

from __future__ import annotations

import os
from pathlib import Path

from support.apache_kafka import held_ports, port_of
from support.processes import ManagedProcess, accepts, wait_until


class Standalone:
    """One Master and `workers` Workers, ready when constructed. `url` is the value for a session's `master`."""

    def __init__(self, directory: Path, pyspark: Path, workers: int = 2) -> None:
        self._spark_class = pyspark / "bin" / "spark-class"
        self._directory = directory
        self._env = {**os.environ, "SPARK_HOME": str(pyspark), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._held = held_ports(1)
        port = port_of(self._held[0])
        self.url = f"spark://127.0.0.1:{port}"
        self.processes: list[ManagedProcess] = []
        try:
            master = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port))
            master.wait_for(lambda: accepts(f"127.0.0.1:{port}"), "Spark's Master listens", timeout=60)
            for number in range(workers):
                self.start_worker(number)
        except BaseException:
            self.stop()
            raise

    def _start(self, name: str, main_class: str, *arguments: str) -> ManagedProcess:
        # Port 0 would select the default port of the web interface.
        self._held += held_ports(1)
        web = ("--webui-port", str(port_of(self._held[-1])))
        command = [self._spark_class, f"org.apache.spark.deploy.{main_class}", *arguments, *web]
        made = ManagedProcess(command, self._directory, name, self._env)
        self.processes.append(made)
        return made

    def start_worker(self, number: int) -> ManagedProcess:
        """Start a Worker with two cores. Return once it is registered at the Master."""
        folder = self._directory / f"work-{number}"
        # On its own host: Spark starts no speculative task on the host of the first attempt.
        arguments = ("--cores", "2", "--memory", "2g", "--work-dir", str(folder), "--host", f"127.0.0.{number + 1}")
        worker = self._start(f"worker-{number}", "worker.Worker", self.url, *arguments)
        log = worker.stderr_path
        worker.wait_for(lambda: "Successfully registered with master" in log.read_text(), "registered", timeout=60)
        return worker

    @property
    def pids(self) -> list[int]:
        """Return Master and Workers. Executors are children of the Workers."""
        return [process.pid for process in self.processes]

    def stop(self) -> None:
        """Kill all processes."""
        for process in reversed(self.processes):
            process.kill()
        wait_until(lambda: all(p.popen.poll() is not None for p in self.processes), "Spark's cluster is stopped")
        for each in self._held:
            each.close()
