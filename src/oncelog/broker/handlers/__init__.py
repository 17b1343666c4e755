"""One small module an API; imported when its API key first arrives."""
