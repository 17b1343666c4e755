"""Helpers shared by tests, conformance and benchmarks."""
