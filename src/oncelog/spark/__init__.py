"""The PySpark data source: streaming source and exactly-once sink."""
