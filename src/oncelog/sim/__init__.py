"""The deterministic world: an event loop with virtual time, a network and a disk that fail."""
