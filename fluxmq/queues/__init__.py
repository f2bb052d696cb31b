"""Durable queues: the replicated state machine of a group's queues, and the leader's dispatcher.

``machine`` applies committed entries (``commands``) and says what is to be written, answered and
woken; ``dispatch`` is what only a leader has: consumers with credit, claims under way, timers. A
queue is a log of batches plus consumer groups; a group is a cursor plus pending ranges, so that a
backlog costs nothing per message. Nothing here does I/O, reads a clock or draws a random number:
time stands in the entries, batches are read through a function given by the host.
"""
