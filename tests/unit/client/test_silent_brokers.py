"""Brokers that reject or do not answer a producer's requests: a warning after 3 s, and time-outs with the cause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncelog import errors
from oncelog.client.producer.core import ProducerCore
from oncelog.client.troubles import SILENT_SECONDS
from oncelog.protocol.errors import ErrorCode
from oncelog.protocol.messages.end_txn import EndTxnRequest
from oncelog.protocol.messages.produce import ProduceRequest
from oncelog.protocol.schema import Message
from support.model_cluster import BUSY, FINE, ModelCluster, ModelConnection
from support.producer_core import with_core


def test_expired_record_has_the_last_error_of_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        core.buffer.append("t", b"x", None, 0, 0, ())
        await core.flush()
        cluster.fault = lambda: BUSY
        future = core.buffer.append("t", b"x", None, 0, 0, ())
        assert future is not None
        await asyncio.sleep(SILENT_SECONDS + 2)
        (warning,) = caplog.messages
        assert "records for t-0 wait: t-0: " in warning
        assert "NOT_ENOUGH_REPLICAS). Start more replicas or lower min.insync.replicas" in warning
        await core.flush()
        error = future.exception(0)
        assert isinstance(error, errors.TimedOutError)
        assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert isinstance(error.__cause__, errors.RetriableError)
        assert error.__cause__.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "attempts failed, the last one with NOT_ENOUGH_REPLICAS: t-0" in str(error)
        assert "Start more replicas or lower min.insync.replicas" in str(error)
        assert core._troubles.why() == ""
        cluster.fault = lambda: FINE

    with_core(body, request_timeout_ms=1_000, delivery_timeout_ms=20_000, linger_ms=0)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("call", ["flush", "commit"])
def test_calls_that_time_out_have_the_last_error_of_the_broker(call: str) -> None:
    cluster = ModelCluster(1, lambda: FINE, version=2)

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        cluster.fault = lambda: BUSY
        core.buffer.append("t", b"x", None, 0, 0, ())
        with pytest.raises(errors.TimedOutError, match=r"t-0: .*NOT_ENOUGH_REPLICAS") as failed:
            await (core.flush(1_000) if call == "flush" else core.commit(1_000))
        assert isinstance(failed.value.__cause__, errors.KafkaError)
        assert failed.value.__cause__.code is ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.fault = lambda: FINE

    with_core(body, cluster, transactional_id="id")


class Hangs(ModelConnection):
    """A connection that does not answer one kind of request for 10 s."""

    hung: type[Message] = ProduceRequest

    def send(self, request: Message, version: int | None = None, **options: object) -> asyncio.Future[Any]:
        if isinstance(request, self.hung):
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Any] = loop.create_future()
            loop.call_later(10, lambda: future.set_result(self._cluster.answer(request, self.version_for(self.hung))))
            return future
        return super().send(request, version, **options)


@pytest.mark.parametrize("kind", [ProduceRequest, EndTxnRequest])
def test_broker_that_does_not_answer_is_logged_after_3_seconds(
    kind: type[Message], caplog: pytest.LogCaptureFixture
) -> None:
    class HangsOn(Hangs):
        hung = kind

    class HungCluster(ModelCluster):
        connection_type = HangsOn

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        core.begin()
        core.buffer.append("t", b"x", None, 0, 0, ())
        commit = asyncio.ensure_future(core.commit())
        await asyncio.sleep(SILENT_SECONDS + 0.1)
        (warning,) = caplog.messages
        assert "broker 1" in warning
        assert f"has not answered {kind.__name__} for 3 s. Check that it runs" in warning
        assert warning.endswith("still waiting")
        with pytest.raises(errors.TimedOutError, match=f"has not answered {kind.__name__}"):
            await core.commit(1_000)
        await commit
        assert len(caplog.messages) == 2
        assert caplog.messages[1].startswith("over after 10 s: ")

    cluster = HungCluster(1, lambda: FINE, version=2)
    with_core(body, cluster, transactional_id="id", linger_ms=0)
