"""AMQP 0.9.1 as bytes and values, with RabbitMQ's extensions.

Responsible for methods, field tables, content headers, SASL responses, and for what a message's properties become in the
block that queues keep. It refuses to know sockets, clocks, channels' states and what a method does.

* `constants`           numbers of the specification: frame types, reply codes
* `errors`              what a peer did wrong, by scope: `HardError` ends the connection, `SoftError` the channel
* `tables`              field tables and their values
* `method_types`        one tuple per method
* `method_table`        the fields of each on the wire
* `methods`             all of them, and `decode`, `encode`, `frame`
* `content`             content headers, properties, frames of a message
* `message_properties`  properties to the canonical block and back; topics and routing keys
* `sasl`                who a response says somebody is
* `server`              what the server says of itself and what a client announces
"""
