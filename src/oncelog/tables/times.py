"""Times as microseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from oncelog import errors

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(name: str, time: datetime | None) -> int | None:
    """Return a time in microseconds since the epoch. Raises ConfigError, which names it, if it has no time zone."""
    if time is None:
        return None
    if time.tzinfo is None:
        raise errors.ConfigError(f"{name}={time.isoformat()} has no time zone; for example, use datetime.now(UTC)")
    return (time - EPOCH) // timedelta(microseconds=1)
