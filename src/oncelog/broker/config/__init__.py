"""Settings of brokers and topics: the known settings, their valid values, and the layer that each value comes from."""
