"""Receivers of a topic: subscriptions, shared groups, retained messages.

Pure tables of one shard: keys are the bytes of topics and filters (validated by the protocol that
received them), receivers and messages are opaque. Nothing here sends, stores on disk or reads a
clock; changes bump a revision, so that callers may cache.

* `topics`         levels of a topic, and whether a filter matches one
* `subscriptions`  filters to subscribers
* `shared`         members of `$share` groups and their rotation
* `ordered_keys`   a sorted set of keys with cheap insertion
* `retained`       retained messages and the search by filter
"""
