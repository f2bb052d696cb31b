"""What a seed draws for a group with queues and storage: its members, its tuning, and its own mix of faults.

As in ``tests.sim.swarm``, every seed leaves most faults out or overdoes some. Times are virtual microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TICK_US = 20_000


@dataclass(slots=True)
class Swarm:
    """The options of one run; chances are per fault, client action or message."""

    voters: int
    spares: int
    """Members that may join later, each with an empty directory."""
    election_ticks: int
    heartbeat_ticks: int
    eager_commit: bool
    gathers: bool
    """Whether followers leave committed entries unapplied for a while."""
    skew_us: int
    """Longest lead of a node's clock."""
    # Network
    delay_us: int
    jitter_us: int
    drop: float
    duplicate: float
    straggle: float
    cut: float
    cut_us: int
    one_way: float
    # Disk
    sync_us: int
    wal_file_bytes: int
    cache_bytes: int
    checkpoint_every: int
    """Applied entries between two checkpoints."""
    power: float
    """How many of the crashes cut the power; the others leave what the kernel was given."""
    crash: float
    crash_in_call: float
    """A node dies inside one of its next calls of the file system."""
    blackout: float
    """The power of all nodes fails at once."""
    write_error: float
    sync_error: float
    full: float
    """The disk is full for a while."""
    flip: float
    """Bits flip at rest in a file."""
    # Group
    transfer: float
    campaign: float
    membership: float
    fault_us: int
    # Clients
    command_us: int
    batch: int
    payload: int
    identified: float
    """Appends with an identity, which are retried until they are answered."""
    consume: float
    """Actions that are a consumer's instead of a publisher's."""
    administer: float
    """Actions that declare or delete a queue."""
    refuse: float
    """Settlements that are not acknowledgements."""


def draw(seed: int, voters: int | None = None) -> Swarm:
    """The options of a seed; `voters` overrides the seed's own choice."""
    random = Random(f"queues {seed}")
    pick, chance = random.choice, random.random
    quiet = chance() < 0.15  # no network faults at all: what is found then is not theirs
    changes = chance() < 0.3
    own_voters = pick((1, 2, 3, 3, 3, 3, 3, 5))
    return Swarm(
        voters=voters or own_voters,
        spares=2 if changes else 0,
        election_ticks=pick((4, 6, 10)),
        heartbeat_ticks=pick((1, 1, 2)),
        eager_commit=chance() < 0.5,
        gathers=chance() < 0.5,
        skew_us=pick((0, 1_000, 1_000_000)),
        delay_us=pick((200, 2_000)),
        jitter_us=pick((100, 3_000, 20_000)),
        drop=0.0 if quiet else pick((0.0, 0.0, 0.02, 0.1)),
        duplicate=0.0 if quiet else pick((0.0, 0.0, 0.1)),
        straggle=0.0 if quiet else pick((0.0, 0.0, 0.02)),
        cut=0.0 if quiet else pick((0.0, 0.1, 0.3)),
        cut_us=pick((300_000, 1_000_000)),
        one_way=pick((0.0, 0.3, 1.0)),
        sync_us=pick((500, 5_000, 20_000)),
        wal_file_bytes=pick((16_384, 65_536)),
        cache_bytes=pick((0, 4_096, 1 << 20)),
        checkpoint_every=pick((3, 8, 30)),
        power=pick((0.3, 1.0)),
        crash=pick((0.0, 0.05, 0.15)),
        crash_in_call=pick((0.0, 0.05, 0.15)),
        blackout=pick((0.0, 0.0, 0.05)),
        write_error=pick((0.0, 0.0, 0.05)),
        sync_error=pick((0.0, 0.0, 0.05)),
        full=pick((0.0, 0.0, 0.1)),
        flip=pick((0.0, 0.0, 0.05)),
        transfer=pick((0.0, 0.0, 0.1)),
        campaign=pick((0.0, 0.0, 0.2)),
        membership=pick((0.1, 0.4)) if changes else 0.0,
        fault_us=pick((50_000, 100_000)),
        command_us=pick((1_000, 3_000, 6_000)),
        batch=pick((1, 3, 8)),
        payload=pick((0, 100, 1_000)),
        identified=pick((0.0, 0.5, 1.0)),
        consume=pick((0.3, 0.6)),
        administer=pick((0.0, 0.03)),
        refuse=pick((0.0, 0.2, 0.5)),
    )
