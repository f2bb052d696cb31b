"""The management interface over HTTP: RabbitMQ's API, for its tools and for people.

Paths, bodies and status codes are those of RabbitMQ's management plugin (its HTTP API reference), as
far as the things exist here.
"""
