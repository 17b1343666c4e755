"""The exactly-once sink, as Spark calls it."""
