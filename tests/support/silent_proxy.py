"""The fault proxy between our clients and a broker that hangs: requests of some APIs are not answered."""

from __future__ import annotations

from oncelog.faults.proxy import FaultProxy
from oncelog.faults.requests import Request
from oncelog.faults.rules import Action, Fault
from oncelog.protocol.apis import ApiKey


class SilentProxy:
    """Requests of the APIs in `silent` do not arrive."""

    def __init__(self, bootstrap: str) -> None:
        self.silent: set[ApiKey] = set()
        self._faults = FaultProxy(bootstrap)
        self._faults.rule = self._fault
        self._faults.start()
        self.port = int(self._faults.bootstrap_servers.rpartition(":")[2])
        self.close = self._faults.close

    def _fault(self, request: Request) -> Fault | None:
        return Fault(Action.SILENCE) if request.api in self.silent else None
