"""The messages of each API: one module declares its request and response in all versions."""
