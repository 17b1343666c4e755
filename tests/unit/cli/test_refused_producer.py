"""A coordinator refuses a transactional producer from the start: the error has the reason."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from oncelog import Producer, errors
from oncelog.aio import Producer as AsyncProducer
from oncelog.faults.proxy import FaultProxy
from support.command_line import Tool
from support.servers import Server

REFUSALS = [
    ("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "InitProducerId of 'p': "),
    ("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED", "InitProducerId of 'p': "),
    ("FindCoordinator", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "coordinator of transaction 'p': "),
]


@pytest.mark.parametrize(("api", "code", "about"), REFUSALS)
def test_refused_producer_raises_the_reason(server: Server, api: str, code: str, about: str) -> None:
    async def start(bootstrap: str) -> None:
        await AsyncProducer(bootstrap, transactional_id="p").start()

    with FaultProxy(server.bootstrap, f"error {api} code={code} transactional-id=p") as faults:
        with pytest.raises(errors.FatalError) as blocking:
            Producer(faults.bootstrap_servers, transactional_id="p")
        with pytest.raises(errors.FatalError) as awaited:
            asyncio.run(start(faults.bootstrap_servers))
    for error in (blocking.value, awaited.value):
        assert error.code.name == code
        assert error.message == f"{about}{error.code.text}"
        assert error.code.text


@pytest.mark.parametrize(("api", "code", "about"), REFUSALS)
def test_command_prints_why_the_producer_is_refused(server: Server, api: str, code: str, about: str) -> None:
    topic = f"refused-{uuid.uuid4().hex[:8]}"
    Tool(server.bootstrap)("topic", "create", topic)
    with FaultProxy(server.bootstrap, f"error {api} code={code} transactional-id=p") as faults:
        tool = Tool(faults.bootstrap_servers)
        said = tool.fails(1, "topic", "produce", topic, "--transactional-id", "p", stdin="a\n")
    assert said.startswith(f"oncelog: {about}")
    assert f"({code})" in said
    assert "abort" not in said
    assert said.endswith(". Grant the permission, then run the command again.\n")


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        (
            "error EndTxn:1 code=INVALID_TXN_STATE",
            "The transaction is aborted, so none of its records becomes visible. Run the command again.",
        ),
        (
            "error Produce:1 code=PRODUCER_FENCED",
            "A newer producer uses the transactional id. Stop it, or use another id.",
        ),
    ],
)
def test_advice_is_for_the_command_line(server: Server, rule: str, advice: str) -> None:
    """The client's advice names methods of a program."""
    topic = f"refused-{uuid.uuid4().hex[:8]}"
    Tool(server.bootstrap)("topic", "create", topic)
    with FaultProxy(server.bootstrap, rule) as faults:
        tool = Tool(faults.bootstrap_servers)
        said = tool.fails(1, "topic", "produce", topic, "--transactional-id", topic, stdin="a\n")
    assert said.endswith(f"). {advice}\n")
