"""Change the metadata of the cluster, and import or export the metadata of Apache Kafka."""
