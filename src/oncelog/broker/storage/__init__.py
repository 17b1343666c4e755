"""Log directories and the partitions in them: opening, syncing, cleaning, deleting."""
