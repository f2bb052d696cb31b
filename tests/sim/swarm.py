"""What a seed draws for itself: how many members, their tuning, and its own mix of faults.

Every seed leaves most faults out or overdoes some (swarm testing): bugs that need much of one thing do not hide
behind a little of everything. All times are virtual microseconds, all rates are per step of what they are about.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

TICK_US = 10_000


@dataclass(slots=True)
class Swarm:
    """The options of one run."""

    voters: int
    spares: int
    """Members that may be added later, each with an empty disk."""
    election_ticks: int
    heartbeat_ticks: int
    pre_vote: bool
    check_quorum: bool
    max_inflight_bytes: int
    max_message_bytes: int
    # Network
    delay_us: int
    jitter_us: int
    fifo: bool
    drop: float
    duplicate: float
    straggle: float
    """Messages that take fifty times as long."""
    # Disk
    sync_us: int
    torn: float
    sync_covers_all: bool
    """Whether one report of durability covers all writes before it, or each write is reported."""
    hard_state_first: bool
    snapshot_every: int
    """Applied entries between two snapshots; 0 for none."""
    apply_us: int
    """How long applying is reported after it was done, at most."""
    # What happens how often
    fault_us: int
    cut: float
    one_way: float
    """How many of the cuts are one-way."""
    crash: float
    power_cut: float
    """All members crash at once."""
    pause: float
    transfer: float
    campaign: float
    membership: float
    command_us: int
    batch: int
    payload: int
    read: float
    """Reads per command."""


def draw(seed: int, voters: int | None = None) -> Swarm:
    """The options of a seed; `voters` overrides its own choice."""
    random = Random(f"swarm {seed}")
    pick, chance = random.choice, random.random
    election = pick((4, 4, 6, 10))
    calm = chance() < 0.1  # no network faults at all: what is found then is not theirs
    own_voters = pick((1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5, 5))
    changes = chance() < 0.35
    return Swarm(
        voters=voters or own_voters,
        spares=pick((1, 2, 4)) if changes else 0,
        election_ticks=election,
        heartbeat_ticks=pick((1, 1, 2)),
        pre_vote=chance() < 0.7,
        check_quorum=chance() < 0.7,
        max_inflight_bytes=pick((1, 300, 2_000, 100_000)),
        max_message_bytes=pick((1, 100, 1_000, 100_000)),
        delay_us=pick((200, 2_000, 8_000)),
        jitter_us=pick((100, 3_000, 20_000)),
        fifo=chance() < 0.25,
        drop=0.0 if calm else pick((0.0, 0.0, 0.02, 0.1, 0.3)),
        duplicate=0.0 if calm else pick((0.0, 0.0, 0.05, 0.2)),
        straggle=0.0 if calm else pick((0.0, 0.0, 0.01, 0.05)),
        sync_us=pick((0, 500, 5_000, 30_000)),
        torn=pick((0.0, 0.5, 0.9)),
        sync_covers_all=chance() < 0.5,
        hard_state_first=chance() < 0.5,
        snapshot_every=pick((0, 0, 4, 10, 40)),
        apply_us=pick((0, 0, 2_000, 20_000)),
        fault_us=pick((20_000, 50_000, 100_000)),
        cut=0.0 if calm else pick((0.0, 0.1, 0.3)),
        one_way=pick((0.0, 0.3, 1.0)),
        crash=pick((0.0, 0.05, 0.2)),
        power_cut=pick((0.0, 0.0, 0.03)),
        pause=pick((0.0, 0.0, 0.1)),
        transfer=pick((0.0, 0.0, 0.1)),
        campaign=pick((0.0, 0.0, 0.2, 0.6)),
        membership=pick((0.1, 0.4)) if changes else 0.0,
        command_us=pick((4_000, 20_000, 60_000)),
        batch=pick((1, 1, 3, 8)),
        payload=pick((0, 40, 400)),
        read=pick((0.0, 0.2, 1.0)),
    )
