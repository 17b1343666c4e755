"""The end of reading: never for `timeout=None`. Reading from a closed consumer raises an error."""

from __future__ import annotations

import asyncio
import threading

import pytest

from oncelog import Consumer, aio, errors

NOWHERE = "localhost:1"
WITHIN_S = 20.0


def test_poll_without_a_timeout_waits_for_a_wakeup() -> None:
    with Consumer(NOWHERE) as consumer:
        consumer.assign([("t", 0)])
        woken = threading.Timer(0.05, consumer.wakeup)
        woken.start()
        with pytest.raises(errors.WakeupError):
            consumer.poll(timeout=None)
        woken.join()


def test_poll_without_a_timeout_waits_for_a_wakeup_in_asyncio() -> None:
    async def body() -> None:
        async with aio.Consumer(NOWHERE) as consumer, asyncio.timeout(WITHIN_S):
            consumer.assign([("t", 0)])
            polled = asyncio.create_task(consumer.poll(timeout=None))
            await asyncio.wait([polled], timeout=0.05)
            assert not polled.done()
            consumer.wakeup()
            with pytest.raises(errors.WakeupError):
                await polled

    asyncio.run(body())


def test_reading_from_a_closed_consumer_raises() -> None:
    consumer = Consumer(NOWHERE)
    consumer.assign([("t", 0)])
    consumer.close()
    for read in (lambda: consumer.poll(0), lambda: next(iter(consumer)), lambda: next(consumer.tables())):
        with pytest.raises(errors.UsageError, match="the consumer is closed"):
            read()


def test_reading_from_a_closed_asyncio_consumer_raises() -> None:
    async def body() -> None:
        consumer = aio.Consumer(NOWHERE)
        await consumer.start()
        consumer.assign([("t", 0)])
        await consumer.close()
        for read in (
            lambda: consumer.poll(0),
            lambda: anext(aiter(consumer)),
            lambda: anext(consumer.tables()),
        ):
            with pytest.raises(errors.UsageError, match="the consumer is closed"):
                await read()

    asyncio.run(body())
