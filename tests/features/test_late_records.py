"""Records of an aborted transaction that arrive late, at a leader that does not verify transactions (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncelog import Producer, errors
from support.proxy import HOLD, PASS, Proxy, redirect
from support.servers import Server
from support.transactions import set_transaction_version
from support.wire import Wire, until

SETTINGS = {"transaction.partition.verification.enable": "false"}


@pytest.fixture
def wire(module_server: Server) -> Iterator[Wire]:
    """Connect to a server with transaction.version 1."""
    with Wire(module_server.bootstrap) as connection:
        set_transaction_version(connection, 1)
        yield connection


def test_purged_records_on_a_lost_connection_do_not_join_the_next_transaction(
    wire: Wire, module_server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, EndTxn overtook the records, and the next commit made them visible."""
    topic = wire.create_topic(name)
    proxy = Proxy(module_server.bootstrap)
    redirect(monkeypatch, proxy)
    options = {"linger_ms": 0, "retry_backoff_ms": 2_000, "retry_backoff_max_ms": 2_000}
    with Producer(module_server.bootstrap, transactional_id=name, **options) as producer:
        producer.begin_transaction()
        producer.send(name, b"aborted", partition=0).result(30)
        proxy.rule = lambda request: HOLD
        purged = producer.send(name, b"purged", partition=0)
        until(lambda: len(proxy.seen), lambda count: count == 2, "the request is at the proxy")
        proxy.rule = lambda request: PASS
        assert producer.purge() == 1
        assert isinstance(purged.exception(30), errors.AbortableError)
        producer.abort_transaction()
        assert proxy.release() == 1
        with producer.transaction():
            producer.send(name, b"next", partition=0)
    proxy.close()
    assert wire.values(topic, committed=True) == [b"next"]
