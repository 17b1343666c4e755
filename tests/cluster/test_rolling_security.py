"""Secure three brokers step by step while clients write and copy, as docs/operations/security.md describes it.

Each step changes the file of the settings, and restarts one broker after the other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from oncelog import Admin, errors
from oncelog.client.admin.acls import AclBinding
from oncelog.cluster.brokers import read_registrations
from oncelog.cluster.store_sqlite import SqliteStore
from stories.bounces.run import read
from stories.bounces.verdict import History
from support.permissions import STANDARD_AUTHORIZER
from support.processes import ManagedProcess, wait_until
from support.secured_cluster import our_options
from support.secured_oncelog import certificates
from support.servers import ReplicatedCluster

BROKERS = 1, 2, 3
SOURCE, TARGET, PARTITIONS = "in", "out", 3
ADMIN, CLIENT = "admin", "alice"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OPEN = {
    "listeners": "OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "OPEN:PLAINTEXT,SECURED:SASL_SSL",
    "inter.broker.listener.name": "OPEN",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


class Rolling:
    """The brokers, and the processes of the clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificates = certificates(folder / "certificates")
        self.file = folder / "server.properties"
        self._settings: dict[str, str] = {}
        self._processes: list[ManagedProcess] = []
        self._login: dict[str, str] = {}
        """Options of the administrator, by librdkafka's names."""
        self.write(OPEN)
        self.cluster = ReplicatedCluster(folder / "server", settings={}, arguments=("--config", str(self.file)))
        self.bootstrap = self.cluster.bootstrap

    # -- brokers ------------------------------------------------------------------------------------------------------

    def write(self, settings: Mapping[str, str | None]) -> None:
        """Change these settings in the file; None removes one."""
        changed = {**self._settings, **settings}
        self._settings = {name: value for name, value in changed.items() if value is not None}
        new = self.file.with_suffix(".new")
        new.touch(0o600)
        new.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        new.rename(self.file)

    def restart_each(self) -> None:
        """Restart one broker after the other. Before the next one, wait until all replicas are in sync."""
        for broker in BROKERS:
            before = self.cluster.broker_pid(broker)
            os.kill(before, signal.SIGTERM)
            wait_until(lambda broker=broker, before=before: self._is_new(broker, before), f"broker {broker} starts")
            wait_until(self._is_in_sync, f"all replicas are in sync after the restart of broker {broker}")

    def _is_new(self, broker: int, before: int) -> bool:
        try:
            return self.cluster.broker_pid(broker) != before
        except (FileNotFoundError, ValueError):
            return False

    def _is_in_sync(self) -> bool:
        if len(self.addresses()) < len(BROKERS):
            return False
        try:
            with Admin(self.bootstrap, **our_options(self._login), request_timeout_ms=2000) as admin:
                topics = admin.describe_topics([SOURCE, TARGET, "__transaction_state", "__consumer_offsets"])
        except errors.KafkaError:
            return False
        return all(each.leader >= 0 and len(each.isr) == 3 for topic in topics for each in topic.partitions)

    def addresses(self, listener: str = "") -> list[str]:
        """Return the addresses of the registered brokers at a listener, or at any one."""
        store = SqliteStore(str(self.cluster.data / "metadata.sqlite"))
        try:
            found = [info.endpoints for info in read_registrations(store).values()]
        finally:
            store.close()
        named = [each.get(listener) if listener else next(iter(each.values()), None) for each in found]
        return [f"{each.host}:{each.port}" for each in named if each is not None]

    def secure(self) -> dict[str, str]:
        """Return the settings of the second listener."""
        users = f'user_broker="hunter2-broker" user_{ADMIN}="hunter2-admin" user_{CLIENT}="hunter2-alice"'
        return {
            "listeners": "OPEN://127.0.0.1:0,SECURED://127.0.0.1:0",
            "ssl.keystore.location": str(self.certificates.broker),
            "ssl.truststore.location": str(self.certificates.ca),
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": (
                f'{MODULE} username="broker" password="hunter2-broker" {users};'
            ),
        }

    def login(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": f"hunter2-{user}",
        }

    # -- clients ------------------------------------------------------------------------------------------------------

    def admin(self) -> Admin:
        return Admin(self.bootstrap, **our_options(self._login))

    def start_clients(self, name: str, login: Mapping[str, str]) -> None:
        """Start a producer, and a pipeline that copies in transactions."""
        file = self.folder / f"{name}.json"
        file.touch(0o600)
        file.write_text(json.dumps(dict(login)))
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        writer = [sys.executable, "-u", "-m", "stories.bounces.writer", "oncelog", "plain", self.bootstrap]
        copier = [sys.executable, "-u", "-m", "support.copying", self.bootstrap, SOURCE, TARGET, "one", "{}"]
        self._processes = [
            ManagedProcess([*writer, SOURCE, name, "100", "1", str(file)], self.folder, f"writer-{name}", env),
            ManagedProcess([*copier, json.dumps(our_options(login))], self.folder, f"copier-{name}", env),
        ]
        for process in self._processes:
            process.wait_for(lambda process=process: any(process.lines()), f"{name}: both clients work")

    def end_writer(self) -> History:
        """Stop the producer, and return what it knows about its records."""
        writer = self._processes[0]
        assert writer.stop(timeout=60) == 0, writer.output()
        return History.read(writer.stdout_path.read_text().splitlines())

    def kill_copier(self) -> None:
        assert self._processes[1].popen.poll() is None, self._processes[1].output()
        self._processes[1].kill()

    def move(self, bootstrap: list[str], login: Mapping[str, str]) -> None:
        """Let the administrator use another listener."""
        self.bootstrap, self._login = ",".join(bootstrap), dict(login)

    def values(self, topic: str) -> Counter[str]:
        found = read(self.bootstrap, topic, self._login)
        return Counter(value for records in found.values() for _, value in records)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.cluster.process.kill()


@pytest.fixture
def rolling(tmp_path: Path) -> Iterator[Rolling]:
    made = Rolling(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(400)
def test_brokers_are_secured_while_clients_write_and_copy(rolling: Rolling) -> None:
    with rolling.admin() as admin:
        admin.create_topics([SOURCE, TARGET], PARTITIONS)
    rolling.start_clients("before", {})
    rolling.write(rolling.secure())
    rolling.restart_each()
    rolling.write({"inter.broker.listener.name": "SECURED"})
    rolling.restart_each()

    histories = [rolling.end_writer()]
    rolling.kill_copier()
    rolling.move(rolling.addresses("SECURED"), rolling.login(ADMIN))
    rolling.start_clients("after", rolling.login(CLIENT))
    authorizer = {
        "listeners": "SECURED://127.0.0.1:0",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:broker;User:{ADMIN}",
        "allow.everyone.if.no.acl.found": "true",
    }
    rolling.write(authorizer)
    rolling.restart_each()
    user = f"User:{CLIENT}"
    both: list[Any] = [AclBinding("topic", name, user, each) for name in (SOURCE, TARGET) for each in ("read", "write")]
    with rolling.admin() as admin:
        admin.create_acls([*both, AclBinding("group", TARGET, user, "read")])
        admin.create_acls([AclBinding("transactional_id", TARGET, user, "write", "prefixed")])
    rolling.write({"allow.everyone.if.no.acl.found": None})
    rolling.restart_each()

    histories.append(rolling.end_writer())
    written = {value for history in histories for value in history.acknowledged}
    assert [history.failed for history in histories] == [[], []]
    wait_until(lambda: rolling.values(TARGET).total() >= len(written), "the pipeline has copied everything")
    rolling.kill_copier()
    assert rolling.values(SOURCE) == Counter(written)
    assert rolling.values(TARGET) == Counter(written)
    assert not rolling.addresses("OPEN")
    assert rolling.cluster.stop() == 0
