"""Groups of the classic protocol: members agree on a generation, and the leader assigns the partitions."""
