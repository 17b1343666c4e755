"""Change the metadata of the cluster, and take over or hand back the metadata of Apache Kafka."""
