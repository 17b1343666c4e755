"""Writers of several client libraries, while brokers are killed and suspended. Then count the records."""
