"""A producer's core with a model cluster, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from oncelog.client.producer.core import ProducerCore
from oncelog.client.producer.options import producer_options
from support.model_cluster import FINE, ModelCluster
from support.virtual_time import run


def with_core(
    body: Callable[[ProducerCore, ModelCluster], Awaitable[None]], cluster: ModelCluster | None = None, **options: Any
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        model = cluster or ModelCluster(1, lambda: FINE, version=2)
        full = producer_options(None, {"bootstrap_servers": "model:1", **options})
        core = ProducerCore(full, loop, clock=lambda: int(loop.time() * 1000), cluster=model)  # type: ignore[arg-type]
        await core.learn_topic("t")
        await body(core, model)
        await core.close()

    run(main())


def values(cluster: ModelCluster) -> list[bytes]:
    return cluster.logs["t", 0].committed()
