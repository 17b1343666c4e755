"""What a scrape must wait for: the answers of other brokers, and reads of logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from oncelog.broker.metrics.lag import GroupLags, Lags
from oncelog.broker.metrics.sinks import Sinks


class OnDemand(NamedTuple):
    """The answers of one scrape."""

    lags: GroupLags
    sinks: dict[str, bool]
    """See `Sinks.pending`."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Ask for what only a scrape needs."""

    lags: Lags
    sinks: Sinks

    async def ask(self) -> OnDemand:
        """Ask all questions. The event loop serves other requests meanwhile."""
        return OnDemand(await self.lags.measure(), await self.sinks.pending())
