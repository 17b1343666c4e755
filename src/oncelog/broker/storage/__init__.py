"""Open, sync, clean and delete the logs of partitions in the log directories."""
