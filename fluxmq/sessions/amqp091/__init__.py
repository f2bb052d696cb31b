"""AMQP 0.9.1 connections: handshake, channels, publishing, consuming, topology, transactions."""
