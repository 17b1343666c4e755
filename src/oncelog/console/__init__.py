"""A web console: what a cluster does, drawn in a browser, for oncelog's brokers and Apache Kafka.

`server.serve` runs it. It is a client like any other: it imports `oncelog.aio` and the client, and never the broker.
Needs the extra `console` (starlette, uvicorn, jinja2).
"""
