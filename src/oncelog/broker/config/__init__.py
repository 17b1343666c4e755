"""Settings of brokers and topics: what there is, what is legal, and which layer a value comes from."""
