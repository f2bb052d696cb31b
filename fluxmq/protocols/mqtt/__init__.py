"""MQTT 3.1.1 and 5.0 as bytes and values: one package, the version is data.

Responsible for every control packet of both versions: its valid content, decoding and encoding. It
knows nothing of sockets, clocks, sessions and topics' subscribers; a packet that contradicts
another packet (an unknown topic alias, a second CONNECT) is the session's business.

* `packet_types`  the numbers of the fixed header
* `reasons`       reason codes, which packet may carry which, and `ProtocolError`
* `wire`          the data types of section 1.5: integers, strings, variable byte integers
* `properties`    the property table of MQTT 5, and the property block of a PUBLISH in transit
* `topics`        valid topic names and topic filters
* `packets`       one slotted dataclass per control packet
* `connect`       CONNECT and CONNACK
* `codec`         `decode`, `encode`, `decode_length`

The hot path, for all neighbouring PUBLISH packets at once:

* `scan`          finds runs of packets in received bytes
* `run`           one run, and how it is written for subscribers
* `delivery`      a session's messages: waiting, sent (`window`), in parts (`inflight_range`)
* `pending_acks`  answers to publishers that wait until a message is safe
* `batches`       batches from runs; `batch_delivery` the other way
"""
