"""The admin client: coroutines by subject, two faces."""
