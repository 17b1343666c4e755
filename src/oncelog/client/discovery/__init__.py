"""Which brokers, leaders and coordinators a cluster has."""
