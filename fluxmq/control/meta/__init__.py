"""The group ``_meta``: the control processes of a cluster agree on topology and users.

Each control process is a member of one Raft group. Who leads decides about changes and proposes what they came to, as
rows; every member writes committed rows into its ``meta.db``, in the transaction in which it notes how far it is. So
the tables are the state machine, and a snapshot is what is in them.

* `decisions`   what an entry holds
* `log`         the log's stable part: in memory as long as it is kept, and on disk
* `tables`      hard state, log and state machine in ``meta.db``: one transaction for everything
* `snapshots`   all rows, for a member that is too far behind or new, and their way there
* `frames`      what control processes say to each other
* `streams`     the connections between them
* `replica`     drives the Raft node
* `admission`   who may vote: a control process whose directory is new or lost first gets everything
* `requests`    changes asked of the process that leads
* `service`     all of it, for the control process
"""
