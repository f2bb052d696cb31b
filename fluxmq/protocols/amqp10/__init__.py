"""AMQP 1.0 on the wire: types, frames, performatives, SASL.

Everything here turns bytes into values and back. It does no I/O, reads no clock, and knows nothing
of links, queues or the broker.

Source: OASIS AMQP 1.0, parts 1 (types), 2 (transport), 3 (messaging), 4 (transactions) and 5
(security).
"""
