"""One module an API: its request and response, every version, declared once."""
