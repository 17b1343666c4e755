"""What the service manager is told about the brokers of `oncelog up`: all are ready, all are alive, they stop."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncelog.broker.process import Launch
from oncelog.broker.service_manager import ServiceManager
from oncelog.cli.broker_process import BrokerProcess

BEATS = 4
"""Signs of life in the time of the watchdog, of each broker and of this process: two may be late or lost."""


class BrokersVitals:
    """Pass on the state of several brokers as that of one service. Without a manager, do nothing."""

    def __init__(self, manager: ServiceManager | None) -> None:
        self._manager = manager
        self._beat_s = 0.0 if manager is None else manager.watchdog_s / BEATS
        self._told_ready = False
        self.beat_at: float | None = None
        """The monotonic time from which `tell` has to be called again, or None: when a broker has sent something."""
        if manager is not None:
            manager.status("starting")

    def reporting(self, launch: Launch) -> Launch:
        """Return the parameters of a broker that reports how it is."""
        if self._manager is None:
            return launch
        return msgspec.structs.replace(launch, reports=True, beat_s=self._beat_s)

    def tell(self, brokers: Sequence[BrokerProcess], now_s: float) -> None:
        """Say that the service is ready, once, and that it is alive, if all its brokers are.

        A broker that has died, or is not ready after a restart, counts as alive: the supervisor restarts it. One that
        was left out at the start does not count for the readiness.
        """
        if self._manager is None:
            return
        running = [broker for broker in brokers if broker.process is not None and broker.ready is not None]
        healthy = [broker for broker in running if broker.healthy]
        if not self._told_ready and len(healthy) == len(running) > 0:
            self._told_ready = True
            addresses = ",".join(broker.ready.advertised for broker in healthy if broker.ready is not None)
            self._manager.ready(f"serving clients at {addresses}")
            self.beat_at = now_s if self._beat_s else None
        if self.beat_at is not None and now_s >= self.beat_at:
            self.beat_at = now_s + self._beat_s
            if all(broker.alive for broker in healthy):
                self._manager.alive()
                for broker in healthy:
                    broker.alive = False

    def stopping(self) -> None:
        """Say that the service stops."""
        if self._manager is not None:
            self.beat_at = None
            self._manager.stopping("stopping: closing connections and logs")
            self._manager.close()
            self._manager = None
