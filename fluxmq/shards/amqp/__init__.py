"""AMQP on one shard: what sessions ask for, done with this shard's queues, routes and copy of the topology."""
