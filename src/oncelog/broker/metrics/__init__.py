"""What an operator reads about one broker: metrics in Prometheus's text format, and whether the broker is ready."""
