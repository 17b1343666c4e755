"""Count one request against the quotas of its client, and throttle the client (KIP-13, KIP-124, KIP-219, KIP-599).

The broker answers at once, with the pause in `throttle_time_ms`, and handles no request of the connection until then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from oncelog.broker.quotas.client_quotas import ClientQuotas
from oncelog.cluster.quotas import CONSUMER, PRODUCER, REQUESTS
from oncelog.net.coroutine_steps import in_steps
from oncelog.net.session import Session
from oncelog.protocol.apis import ApiKey
from oncelog.protocol.errors import ErrorCode, ProtocolError
from oncelog.protocol.schema import Message

T = TypeVar("T")

UNMETERED = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that no quota limits: those of a login."""
_LONGEST_MS = 2**31 - 1
_STRICT_SINCE = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3, ApiKey.METADATA: 0}
"""From this version on, an API rejects changes above the quota. In earlier versions, the client only pauses."""
_OF_BROKERS = {int(ApiKey.WRITE_TXN_MARKERS): 0, int(ApiKey.ADD_PARTITIONS_TO_TXN): 4}
"""From this version on, only brokers may use the API."""


def is_of_brokers(api_key: int, version: int) -> bool:
    """Return whether only brokers may send requests of this API."""
    return version >= _OF_BROKERS.get(api_key, version + 1)


class Metering:
    """Count the requests of all clients."""

    def __init__(self, quotas: ClientQuotas, busy: Callable[[], float]) -> None:
        """`busy` is the clock in seconds by which the work on a request is measured."""
        self.quotas = quotas
        self.busy = busy

    def meter(self, session: Session, client_id: str, api_key: int, version: int, size: int) -> Meter:
        """Return the meter of a request of `size` bytes."""
        return Meter(self, session, client_id, api_key, version, size)


class Meter:
    """What one request has used. Create it when the work on the request begins."""

    __slots__ = (
        "_api_key",
        "_busy",
        "_client_id",
        "_exempt",
        "_pause_s",
        "_quotas",
        "_recorded",
        "_session",
        "_size",
        "_spent",
        "_started",
        "_user",
        "_version",
    )

    def __init__(
        self, metering: Metering, session: Session, client_id: str, api_key: int, version: int, size: int
    ) -> None:
        self._quotas = metering.quotas
        self._busy = metering.busy
        self._session = session
        self._user = session.principal.partition(":")[2]
        self._client_id = client_id
        self._api_key = api_key
        self._version = version
        self._size = size
        self._exempt = False
        self._spent = 0.0
        self._started = self._busy()
        self._pause_s = 0.0
        self._recorded = False

    def exempt(self) -> None:
        """Do not limit this request, because it is a follower's Fetch."""
        self._exempt = True

    # -- what handlers count ------------------------------------------------------------------------------------

    @property
    def most_fetched(self) -> int | None:
        """The largest number of bytes that a Fetch may return. None if there is no limit."""
        most = None if self._exempt else self._quotas.most_at_once(CONSUMER, self._user, self._client_id)
        return None if most is None else int(min(most, _LONGEST_MS))

    def admit_fetched(self, size: int) -> bool:
        """Count records of `size` bytes. Return False if the client must pause first, so the response must be empty."""
        if self._exempt:
            return True
        self._record_time()
        if self._pause_s > 0:
            return False
        admitted, pause = self._quotas.admit(CONSUMER, self._user, self._client_id, size)
        self._pause_s = pause
        return admitted

    def mutate(self, partitions: int) -> None:
        """Count partitions that are created or deleted. Raises THROTTLING_QUOTA_EXCEEDED."""
        strict = self._version >= _STRICT_SINCE[ApiKey(self._api_key)]
        admitted, pause = self._quotas.mutate(self._user, self._client_id, partitions, strict=strict)
        self._pause_s = max(self._pause_s, pause)
        if not admitted:
            message = "The throttling quota has been exceeded."
            raise ProtocolError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    # -- what the dispatcher counts -----------------------------------------------------------------------------

    async def timed(self, work: Awaitable[T]) -> T:
        """Wait for the rest of the work, and count the time of its steps on the event loop."""
        self._pause_work()
        return await in_steps(work, self._resume_work, self._pause_work)

    def _resume_work(self) -> None:
        self._started = self._busy()

    def _pause_work(self) -> None:
        now = self._busy()
        self._spent += now - self._started
        self._started = now

    def finish(self, response: Message | None) -> None:
        """Count the request, and throttle its client if it must pause. The response says so, if there is one."""
        if self._exempt:
            return
        if self._api_key == ApiKey.PRODUCE and not self._recorded:
            pause = self._quotas.record(PRODUCER, self._user, self._client_id, self._size)
            self._pause_s = max(self._pause_s, pause)
        if response is not None:  # as in Kafka, a Produce with acks=0 does not count for `request_percentage`
            self._record_time()
        self._recorded = True
        if self._pause_s > 0:
            pause_ms = max(round(min(self._pause_s * 1000, _LONGEST_MS)), 1)  # a pause may be infinite
            if response is not None and "throttle_time_ms" in response.FIELDS:
                response.throttle_time_ms = pause_ms  # type: ignore[attr-defined]
            self._session.throttle(pause_ms / 1000)

    def _record_time(self) -> None:
        """Count the time on the event loop, once. As in Kafka, a pause for it is at most one window."""
        if self._recorded:
            return
        self._recorded = True
        self._pause_work()
        percent = 100 * self._spent
        pause = self._quotas.record(REQUESTS, self._user, self._client_id, percent)
        self._pause_s = max(self._pause_s, min(pause, self._quotas.windows.seconds))
