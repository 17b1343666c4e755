"""Convert keys and values of single records to bytes and back: the options key_serializer, value_deserializer etc."""
