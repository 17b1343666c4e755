"""Deterministic simulation: an event loop with virtual time, and a network and disks with injected faults."""
