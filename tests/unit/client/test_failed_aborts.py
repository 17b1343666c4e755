"""The error of a failed block whose abort fails, too."""

from __future__ import annotations

import pytest

from oncelog import aio, errors
from oncelog.client.producer._shared import abort_failed
from oncelog.client.producer.core import ProducerCore
from support.model_cluster import ModelCluster
from support.producer_core import values, with_core


def test_abort_error_that_is_fatal_replaces_a_less_severe_error() -> None:
    first, second = errors.AbortableError("first"), errors.FencedError("second")
    with pytest.raises(errors.FencedError) as caught:
        abort_failed(first, second)
    assert caught.value is second
    assert second.__cause__ is first


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ValueError("first"), errors.FencedError("second")),
        (errors.FatalError("first"), errors.FencedError("second")),
        (errors.AbortableError("first"), errors.TimedOutError("second")),
    ],
)
def test_other_errors_are_kept_with_a_note_about_the_abort(first: BaseException, second: errors.KafkaError) -> None:
    abort_failed(first, second)
    assert first.__notes__ == [f"the abort of the transaction failed as well: {second}"]


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_block_may_end_its_transaction_itself(end: str) -> None:
    """Before, the block raised after its own commit, as if the commit had failed."""

    async def body(core: ProducerCore, cluster: ModelCluster) -> None:
        await core.init_transactions()
        producer = aio.Producer("model:1", transactional_id="id")
        producer._started = core
        async with producer.transaction():
            await producer.send("t", b"x", partition=0)
            await core.flush()
            await getattr(producer, end)()
            with pytest.raises(errors.UsageError, match="only in a transaction"):
                await producer.send("t", b"late", partition=0)
        assert values(cluster) == ([b"x"] if end == "commit_transaction" else [])
        async with producer.transaction():
            await producer.send("t", b"next", partition=0)
        assert values(cluster)[-1:] == [b"next"]

    with_core(body, transactional_id="id")
