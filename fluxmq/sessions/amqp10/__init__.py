"""The meaning of an AMQP 1.0 connection: SASL and open, sessions, links, deliveries, outcomes."""
