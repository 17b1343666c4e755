"""If a handler of the program's logging raises an exception, the client continues."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterator

import pytest

import oncelog.client
from oncelog import Consumer, Producer
from oncelog.client.guarded_logs import NAMES
from oncelog.testing import Broker


class FailingHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        raise RuntimeError("this handler always fails")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingHandler]:
    handler, logger = FailingHandler(), logging.getLogger("oncelog")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    logging.getLogger("oncelog.client").manager._clear_cache()  # type: ignore[attr-defined]
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logging.getLogger("oncelog.client").manager._clear_cache()  # type: ignore[attr-defined]


@pytest.mark.parametrize("reported", [True, False])
def test_client_continues(
    failing: FailingHandler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reported: bool
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", reported)
    with Broker(topics=["t"]) as broker:
        with Producer(broker.bootstrap_servers) as producer:
            for _ in range(2):
                producer.send("t", b"x").result()
                broker.kill()
                broker.restart()
            with Producer(broker.bootstrap_servers, transactional_id="a") as other, other.transaction() as transaction:
                transaction.send("t", b"x")
        with Consumer(broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["t"])
            found = 0
            while found < 3:
                found += len(list(consumer.poll(30)))
            consumer.commit()
    assert failing.count > 10
    assert ("this handler always fails" in capsys.readouterr().err) == reported


def test_all_loggers_of_the_client_are_guarded() -> None:
    modules = [
        importlib.import_module(each.name) for each in pkgutil.walk_packages(oncelog.client.__path__, "oncelog.client.")
    ]
    used = {value.name for module in modules for value in vars(module).values() if isinstance(value, logging.Logger)}
    assert len(used) > 5
    assert used <= set(NAMES)
    assert all("handle" in vars(logging.getLogger(name)) for name in NAMES)
