"""What AMQP 0.9.1 connections mean: greeting, channels, publishing, consuming, topology, transactions."""
