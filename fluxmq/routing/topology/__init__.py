"""Vhosts, exchanges, queues, bindings and policies: records, rules of change, and message routing.

Pure. One process decides by `Topology.apply`, every other keeps a copy by taking the deltas in
order. Nothing here stores, sends or reads a clock; queues are known by name, their content is not.

* `records`       what exists
* `changes`       requests to change it
* `topology`      all records, with a revision
* `store`         records with their indexes, and the journal that makes changes atomic
* `rules`         preconditions, effects and refusals of each change
* `checks`        reserved names, exclusive use, equivalence of declarations
* `refusals`      refusals, with RabbitMQ's codes and texts
* `arguments`     valid arguments of queues, exchanges and bindings
* `policies`      valid definitions of policies, and which policy applies
* `effective`     combination of arguments and policies
* `configured`    queues of the settings file
* `queue_config`  effective settings as values of the queue engine
* `tables`        bindings of one exchange, by type; `topic_trie` those of topic exchanges
* `routing`       from exchange and routing key to queues
* `values`        arguments as plain values, their types and canonical bytes
* `fields`        valid fields of records and changes
* `names`         names of queues, outside and inside
"""
