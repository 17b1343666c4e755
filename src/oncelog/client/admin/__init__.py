"""The admin client: coroutines by subject, a blocking `Admin` and one for asyncio."""
