"""The fixed limits of queues, each with its reason."""

from __future__ import annotations

from typing import Final

QUEUES_MAX: Final = 100_000
"""Queues in one replication group: each is a directory with open files on the shard's side."""

GROUPS_MAX: Final = 10_000
"""Consumer groups of one queue: every append checks each of them when the queue has a depth
limit."""

MEMBERS_MAX: Final = 100_000
"""Consumers of one group: each is in the snapshot."""

PENDING_RANGES_MAX: Final = 100_000
"""Pending ranges of one group; dead ones count separately. About 500 bytes each, so 50 MB; beyond
it nothing more is claimed until something is settled."""

DEAD_RANGES_MAX: Final = 100_000
"""Ranges waiting for their dead-letter append. Beyond it claims stop; messages still die."""

CLAIM_GRANULE: Final = 100_000
"""Microseconds to which times of a claim are rounded, so that claims of neighbouring ticks merge
into one range. A deadline is later than visibility_timeout by at most this, never earlier."""

PRODUCERS_MAX: Final = 4_096
"""Producers whose sequences a queue remembers; the least recently used is forgotten first."""

PRODUCER_RANGES_MAX: Final = 1_024
"""Ranges of seen sequences per producer. A producer that counts up has one; beyond the limit the
lowest is forgotten, and a repeat from there is stored again (at least once, never lost)."""

MARKS_MAX: Final = 2_048
"""Points of a log whose size and time are remembered. Beyond it every second one is dropped:
retention then cuts at coarser places, never too early."""

NAME_BYTES_MAX: Final = 1_024
"""Bytes of a queue's, group's or member's name; a group's name holds its filter."""

FILTER_BYTES_MAX: Final = 65_535
"""Bytes of a filter: an MQTT string."""

REASON_BYTES_MAX: Final = 256
"""Bytes of a consumer's reason for a rejection; longer ones are truncated."""

SCANNED_MAX: Final = 65_536
"""Messages that one group's filter may pass over in one run, so that a rare match does not stall a
tick."""

RUN_AHEAD_MAX: Final = 65_536
"""New messages of one group handed out while no claim of them is applied: far more than a slow
disk's commit takes at full speed. After a change of leader it is unknown which of so many were
delivered."""

CLOCKS_APART_MAX: Final = 1_000_000
"""Assumed clock difference between nodes in µs, where only a redelivered mark depends on it."""

RUN_BYTES_MAX: Final = 4 << 20
"""Bytes handed out of one queue in one run, unless a single message is larger: then others have
their turn, and the writer can apply back-pressure."""

RANGES_PER_COMMAND_MAX: Final = 65_536
"""Ranges in one claim or settlement; bounds what is read from an entry before it is checked."""

DEPTH_MAX: Final = 1 << 50
"""Largest message count that any limit of a queue may name."""

UNSETTLED_MAX: Final = 65_536
"""Unsettled messages of a consumer that sets no limit: those in flight to it are in memory."""

PRIORITY_MAX: Final = 255
"""Highest priority of a message: AMQP 0.9.1 has one octet for it."""

UNLIMITED: Final = 1 << 50
"""Credit of a consumer bounded only by its limit of unsettled messages."""

assert CLAIM_GRANULE < 1_000_000
assert MARKS_MAX % 2 == 0
