"""Vhosts, exchanges, queues, bindings and policies: which there are, who may change them how, and where messages go.

Pure. One process decides by `Topology.apply`, every other holds a copy that it keeps by taking the deltas in order.
Nothing here stores, sends or reads a clock; queues are known by name, what is in them is not.

* `records`       what there is
* `changes`       what may be asked to change it
* `topology`      the whole of them, with a revision
* `store`         records with their indexes, and the journal that makes changes atomic
* `rules`         what a change needs, does and refuses
* `checks`        reserved names, exclusive use, equivalence of declarations
* `refusals`      what is not done, with RabbitMQ's codes and texts
* `arguments`     what the arguments of queues, exchanges and bindings may be
* `policies`      what definitions of policies may be, and which policy applies
* `effective`     what arguments and policies come to
* `configured`    queues of the settings file
* `queue_config`  the same as values of the queue engine
* `tables`        bindings of one exchange, by type; `topic_trie` those of topic exchanges
* `routing`       from exchange and routing key to queues
* `values`        arguments as plain values, their types and one form of bytes
* `fields`        what the fields of records and changes may hold
* `names`         names of queues, outside and inside
"""
