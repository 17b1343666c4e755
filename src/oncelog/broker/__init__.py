"""One broker: the request handlers and the process around them."""
