"""Producer, consumer and admin: state machines with an asyncio driver and a blocking face."""
