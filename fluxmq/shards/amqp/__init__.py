"""AMQP on one shard: serves sessions' requests with the shard's queues, routes and topology."""
