"""Foreign Kafka clients with one small common interface, so that the same test runs with all of them."""
