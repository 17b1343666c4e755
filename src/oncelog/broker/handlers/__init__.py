"""The handlers: one module for each API, or for a few related ones. It is imported when a request first needs it."""
