"""Regular expressions in RE2's syntax, as RE2/J 1.8 reads them: Kafka 4.3.1 has this version."""
