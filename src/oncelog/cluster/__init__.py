"""Shared metadata (the versioned tree) and replicas of partitions."""
