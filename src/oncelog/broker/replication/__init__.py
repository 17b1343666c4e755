"""Follow other leaders: fetch, truncate, report log starts. Write the in-sync replicas of led partitions."""
