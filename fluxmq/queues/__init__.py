"""Durable queues: the replicated state machine of a group's queues, and the leader's dispatcher.

``machine`` applies committed entries (``commands``) and returns what is to be written, answered and
woken; ``dispatch`` is the leader's volatile part: consumers with credit, in-flight claims, timers.
A queue is a log of batches plus consumer groups; a group is a cursor plus pending ranges, so a
backlog costs nothing per message. Nothing here does I/O, reads a clock or draws a random number:
entries carry their time, and the host passes a function that reads batches.
"""
