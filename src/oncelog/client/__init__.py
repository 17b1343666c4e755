"""Producer, consumer and admin: state machines with a driver for asyncio, and blocking classes over it."""
