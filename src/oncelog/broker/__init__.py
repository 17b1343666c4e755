"""Implement one broker: its parts, its request handlers, and the process that runs it."""
