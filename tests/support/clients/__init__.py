"""Other people's Kafka clients behind one small interface, so that one test body drives them all."""
