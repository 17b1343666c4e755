"""Topic -> Spark -> topic while everything that takes part is killed at random moments; then the rows are counted."""
