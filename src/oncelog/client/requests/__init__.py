"""Requests over many partitions or groups, each part sent to the broker that has it."""
