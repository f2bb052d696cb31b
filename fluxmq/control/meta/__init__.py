"""The group ``_meta``: the control processes of a cluster agree on topology and users.

The control processes are the members of one Raft group. The leader decides about changes and
proposes the result as rows; every member writes committed rows into its ``meta.db``, in the
transaction that records how far it has applied. So the tables are the state machine, and a snapshot
is their content.

* `decisions`   content of an entry
* `log`         the stable part of the log: in memory as long as it is kept, and on disk
* `tables`      hard state, log and state machine in ``meta.db``: one transaction for everything
* `snapshots`   all rows, for a new member or one that lags too far, and their transfer
* `frames`      messages between control processes
* `streams`     connections between them
* `replica`     drives the Raft node
* `admission`   who may vote: a control process with a new or lost directory first catches up
* `requests`    changes requested from the leader
* `service`     all of it, for the control process
"""
