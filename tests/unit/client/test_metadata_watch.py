"""The existence of assigned topics is checked once, at the first poll that a broker can answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import pytest

from oncelog import errors
from oncelog.client.consumer.core import ConsumerCore
from oncelog.client.consumer.metadata_watch import log as watch_log
from oncelog.client.consumer.options import consumer_options
from oncelog.protocol.errors import ErrorCode


def test_unavailable_broker_is_asked_at_the_next_poll(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[set[str]] = []

    async def body() -> None:
        core = ConsumerCore(consumer_options(None, {"bootstrap_servers": "nowhere:1"}), asyncio.get_running_loop())

        async def refresh(topics: Iterable[str], **_: object) -> None:
            asked.append(set(topics))
            if len(asked) == 1:
                raise errors.ConnectionFailedError("away")
            core.cluster.topology.failures["typo"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

        core.cluster.refresh = refresh  # type: ignore[method-assign, assignment]
        core.assign([("typo", 0), ("typo", 1), ("there", 0)])
        for _ in range(4):
            core.metadata_watch.polled()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        core.assign([("typo", 0)])
        core.metadata_watch.polled()
        await asyncio.sleep(0)
        await core.close()

    caplog.set_level(logging.WARNING, watch_log.name)
    asyncio.run(body())
    assert asked == [{"typo", "there"}] * 2
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["assigned topic 'typo'"]
