"""The parts of the program that the simulated nodes are made of: no other module here imports the replication engine.

A move of these modules in the program changes this file alone.
"""

from __future__ import annotations

from fluxmq.engine.dead_letters import DeadLetters
from fluxmq.engine.group import ReplicationGroup
from fluxmq.engine.names import QueueInfo, QueueNames, dead_letter_config
from fluxmq.engine.ports import Attached, AttachRequest, ConsumerHandle, QueueStats
from fluxmq.model.batch_format import Batch
from fluxmq.model.message_batch import build_message
from fluxmq.queues.commands import Verb
from fluxmq.queues.config import Overflow, QueueConfig, QueueType
from fluxmq.queues.machine import Machine
from fluxmq.queues.origins import Identity
from fluxmq.replication.checkpoints import Parts, capture, trim, write
from fluxmq.replication.open_group import Member, OpenGroup, open_group
from fluxmq.replication.shared_log import SharedLog
from fluxmq.replication.stores import DiskStores
from fluxmq.settings.schema import Settings

DEAD = "dead"
"""The dead-letter queue of all queues that have one."""
TEMPORARY = "temporary-"
"""Prefix of queues that come and go."""

__all__ = [
    "DEAD",
    "TEMPORARY",
    "AttachRequest",
    "Attached",
    "Batch",
    "ConsumerHandle",
    "DeadLetters",
    "DiskStores",
    "Identity",
    "Machine",
    "Member",
    "OpenGroup",
    "Overflow",
    "Parts",
    "QueueConfig",
    "QueueInfo",
    "QueueNames",
    "QueueStats",
    "QueueType",
    "ReplicationGroup",
    "Settings",
    "SharedLog",
    "Verb",
    "build_message",
    "capture",
    "dead_letter_config",
    "open_group",
    "trim",
    "write",
]
