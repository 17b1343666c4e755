"""The consumer: its state without I/O, the drivers that send its requests, a blocking and an asyncio class."""
