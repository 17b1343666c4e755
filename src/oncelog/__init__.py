"""Exactly-once streaming for Python and Spark people."""
