"""The parts of the program that the simulated nodes are made of: no other module here imports the replication engine.

A move of these modules in the program changes this file alone.
"""

from __future__ import annotations

from fluxmq.model.batch_format import Batch
from fluxmq.model.message_batch import build_message
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import Overflow, QueueConfig, QueueType
from fluxmq.queues.machine import Machine
from fluxmq.queues.origins import Identity
from fluxmq.settings.schema import Settings
from fluxmq.shards.queues.checkpoints import Parts, capture, trim, write
from fluxmq.shards.queues.dead_letters import DeadLetters
from fluxmq.shards.queues.group import Group
from fluxmq.shards.queues.hosted import Hosted, Member, open_group
from fluxmq.shards.queues.names import QueueInfo, QueueNames, dead_letter_config
from fluxmq.shards.queues.ports import Attached, Held, Status, Wanted
from fluxmq.shards.queues.shared_log import SharedLog
from fluxmq.shards.queues.stores import DiskStores

DEAD = "dead"
"""The dead-letter queue of all queues that have one."""
TEMPORARY = "temporary-"
"""Prefix of queues that come and go."""

__all__ = [
    "DEAD",
    "TEMPORARY",
    "Attached",
    "Batch",
    "DeadLetters",
    "DiskStores",
    "Group",
    "Held",
    "Hosted",
    "Identity",
    "Machine",
    "Member",
    "Overflow",
    "Parts",
    "QueueConfig",
    "QueueInfo",
    "QueueNames",
    "QueueType",
    "Settings",
    "SharedLog",
    "Status",
    "Verb",
    "Wanted",
    "build_message",
    "capture",
    "dead_letter_config",
    "open_group",
    "trim",
    "write",
]
