"""Store the shared metadata in a versioned tree, and hold the replicas of partitions."""
