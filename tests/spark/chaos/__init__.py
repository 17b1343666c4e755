"""Copy topic -> Spark -> topic while all participants are killed at random moments, then count the rows."""
