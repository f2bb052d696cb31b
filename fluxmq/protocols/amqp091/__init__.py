"""AMQP 0.9.1 as bytes and values, with RabbitMQ's extensions.

Responsible for methods, field tables, content headers, SASL responses, and for converting a
message's properties to the block that queues keep. It knows nothing of sockets, clocks, channels'
states and the effects of methods.

* `constants`           numbers of the specification: frame types, reply codes
* `errors`              errors of a peer: `HardError` ends the connection, `SoftError` the channel
* `tables`              field tables and their values
* `methods`             one tuple per method, with its fields on the wire
* `method_codec`        `decode`, `encode` and `frame` for all of them
* `content`             content headers, properties, frames of a message
* `message_properties`  properties to the canonical block and back; topics and routing keys
* `sasl`                the identity in a response
* `server`              properties of the server and capabilities of clients

The hot path, for many messages at once:

* `parser`              frames; publishes as runs
* `run`                 one run of publishes, and batches from it
* `delivery`            frames of deliveries, straight from a batch
* `ledger`              unacked deliveries of a channel
* `confirms`            publisher confirms of a channel
* `wire`                numbers in network order
"""
