"""Follow other leaders: fetch, truncate, report log starts. For the partitions that it leads, write who is in sync."""
