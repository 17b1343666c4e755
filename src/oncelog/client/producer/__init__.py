"""The producer: state machines without I/O, the loop that sends, a blocking `Producer` and one for asyncio."""
