"""Producer, consumer and admin: state machines with a driver for asyncio, and blocking classes over it."""

from oncelog.client.guarded_logs import guard_logs

guard_logs()
