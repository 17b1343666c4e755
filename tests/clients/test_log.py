"""A client's log is empty while all is well, and says once what keeps the client waiting."""

from __future__ import annotations

import logging
import time
from contextlib import closing, suppress

import pytest

from oncelog import Admin, Consumer, Producer, errors
from oncelog.client import troubles
from support.processes import wait_until
from support.proxy import Proxy, redirect
from support.servers import Server


def test_log_is_empty_when_all_is_well(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        with Admin(server.bootstrap) as admin:
            admin.create_topics(name, 1)
        with Producer(server.bootstrap, transactional_id=name) as producer, producer.transaction() as txn:
            for number in range(100):
                txn.send(name, b"%d" % number)
        options = {"group_id": name, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        with Consumer(server.bootstrap, **options) as consumer:
            consumer.subscribe([name])
            read = 0
            while read < 100:
                read += len(consumer.poll(5))
            consumer.commit()
    assert [record for record in caplog.records if record.name.startswith("oncelog")] == []


def test_outage_is_logged_once_by_each_client_and_its_end_once(
    server: Server, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "SILENT_SECONDS", 0.3)
    with Admin(server.bootstrap) as admin:
        admin.create_topics(name, 1)
    proxy = Proxy(server.bootstrap)
    redirect(monkeypatch, proxy)
    with (
        Producer(server.bootstrap) as producer,
        Consumer(server.bootstrap, group_id=name, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([name])
        producer.send(name, b"before").result(30)
        wait_until(lambda: consumer.poll(0.1), "the first record")
        proxy.close()
        future = producer.send(name, b"after")
        wait_until(lambda: consumer.poll(0.1) == [] and len(caplog.messages) >= 2, "a warning of each client")
        again = Proxy(server.bootstrap)
        proxy.port = again.port
        future.result(60)
        wait_until(lambda: consumer.poll(0.1), "the record after the outage", timeout=90)
        wait_until(lambda: len(caplog.messages) >= 4, "the end for each client")
    again.close()
    lines = caplog.messages
    assert len(lines) == 4, lines
    assert {record.name for record in caplog.records} == {"oncelog.client.connections"}
    assert all(line.startswith("no broker can be reached: ") for line in lines[:2])
    assert all("Check bootstrap_servers" in line for line in lines[:2])
    assert all(line.startswith("over after ") for line in lines[2:])


def test_full_buffer_is_logged(name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(troubles, "SILENT_SECONDS", 0.2)
    producer = Producer("localhost:1", buffer_memory=1000, max_block_ms=1500)
    with closing(producer), suppress(errors.TimedOutError):
        producer._core.counts[name] = 1
        producer.send(name, b"x" * 800)
        with pytest.raises(errors.TimedOutError):
            producer.send(name, b"x" * 800)
        own = [record.getMessage() for record in caplog.records if record.name == "oncelog.client.producer"]
        assert len(own) == 1, caplog.messages
        assert "send() waits, because buffer_memory = 1000 is used up: no broker can be reached" in own[0]
        producer.close(0)


def test_topic_that_does_not_exist_is_logged_once(
    server: Server, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "SILENT_SECONDS", 0.2)
    with Consumer(server.bootstrap) as consumer:
        consumer.assign([(name, 0)])
        until = time.monotonic() + 3
        while time.monotonic() < until:
            consumer.poll(0.1)
    (line,) = caplog.messages
    assert f"assigned topic {name!r}" in line
