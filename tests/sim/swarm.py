"""What a seed draws for itself: how many members, their tuning, and its own mix of faults.

Every seed leaves most faults out or overdoes some (swarm testing): bugs that need much of one thing do not hide
behind a little of everything. All times are virtual microseconds, all rates are per step of what they are about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

TICK_US = 10_000
ANY_APPENDS = 1 << 20
"""No limit that a run could reach."""


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
    max_unstable_bytes: int
    max_apply_bytes: int
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
    slow_disk: bool
    """Whether the first member's disk takes ten times as long."""
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
    cut_us: int
    """Longest cut."""
    one_way: float
    """How many of the cuts are one-way."""
    crash: float
    power_cut: float
    """All members crash at once."""
    pause: float
    transfer: float
    campaign: float
    unreachable: float
    """The host tells a leader that a connection is gone, truly or not."""
    membership: float
    command_us: int
    batch: int
    payload: int
    read: float
    """Reads per command."""
    # What a worn group has besides
    pieces: int = 0
    """A snapshot is carried in so many pieces at most; 0: as one message."""
    stall: float = 0.0
    """Syncs that take up to two seconds."""
    write_error: float = 0.0
    """A write or sync fails; what it was to make durable may or may not be there after a restart."""
    stops: float = 0.0
    """How many of the members whose write failed never come back."""
    damage: float = 0.0
    """Bits flip in a record at rest."""
    old_directory: float = 0.0
    """A member finds an earlier copy of its directory, or an empty one, when it starts."""
    snapshot_now: float = 0.0
    """A member takes a snapshot and compacts its log, whenever that is."""
    linger_us: int = 300_000
    """How long a removed member goes on at most."""
    step_fault: float = 0.0
    """Somebody crashes or is cut off right after a step of replacing a member."""
    early: float = 0.0
    """How many learners are promoted without looking whether they have caught up."""
    same_number: float = 0.0
    """How many of the lost members come back under their old number."""
    cut_transfer: float = 0.0
    """Leadership is handed to a member that is being cut off."""
    max_inflight_appends: int = ANY_APPENDS
    rests: bool = False
    """Whether members share heartbeats while nothing happens."""


def mixed(seed: int, voters: int | None = None) -> Swarm:
    """A bit of anything, or much of it; `voters` overrides the seed's own choice."""
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
        max_unstable_bytes=pick((200, 100_000, 100_000)),
        max_apply_bytes=pick((1, 1_000, 100_000)),
        delay_us=pick((200, 2_000, 8_000)),
        jitter_us=pick((100, 3_000, 20_000)),
        fifo=chance() < 0.25,
        drop=0.0 if calm else pick((0.0, 0.0, 0.02, 0.1, 0.3)),
        duplicate=0.0 if calm else pick((0.0, 0.0, 0.05, 0.2)),
        straggle=0.0 if calm else pick((0.0, 0.0, 0.01, 0.05)),
        sync_us=pick((0, 500, 5_000, 30_000)),
        slow_disk=chance() < 0.2,
        torn=pick((0.0, 0.5, 0.9)),
        sync_covers_all=chance() < 0.5,
        hard_state_first=chance() < 0.5,
        snapshot_every=pick((0, 0, 4, 10, 40)),
        apply_us=pick((0, 0, 2_000, 20_000)),
        fault_us=pick((20_000, 50_000, 100_000)),
        cut=0.0 if calm else pick((0.0, 0.1, 0.3)),
        cut_us=pick((300_000, 2_000_000)),
        one_way=pick((0.0, 0.3, 1.0)),
        crash=pick((0.0, 0.02, 0.06, 0.2)),
        power_cut=pick((0.0, 0.0, 0.03)),
        pause=pick((0.0, 0.0, 0.1)),
        transfer=pick((0.0, 0.0, 0.1)),
        campaign=pick((0.0, 0.0, 0.2, 0.6)),
        unreachable=pick((0.0, 0.0, 0.1)),
        membership=pick((0.1, 0.4)) if changes else 0.0,
        command_us=pick((4_000, 20_000, 60_000)),
        batch=pick((1, 1, 3, 8)),
        payload=pick((0, 40, 400)),
        read=pick((0.0, 0.2, 1.0)),
    )


def storm(seed: int, voters: int | None = None) -> Swarm:
    """Leaders change all the time, old ones go on unheard, and appends bring one entry each: logs part."""
    random = Random(f"storm {seed}")
    return replace(
        mixed(seed, voters or random.choice((3, 5))),
        election_ticks=random.choice((3, 5)),
        heartbeat_ticks=1,
        pre_vote=False,
        check_quorum=random.random() < 0.2,
        max_message_bytes=random.choice((1, 100)),
        max_inflight_bytes=random.choice((1, 100, 2_000)),
        cut=random.choice((0.05, 0.2)),
        cut_us=300_000,
        slow_disk=random.random() < 0.5,
        one_way=random.choice((0.0, 0.3)),
        crash=random.choice((0.0, 0.02, 0.06)),
        campaign=random.choice((0.1, 0.3)),
        fault_us=random.choice((20_000, 50_000)),
        delay_us=random.choice((200, 2_000)),
        jitter_us=random.choice((1_000, 6_000, 20_000)),
        sync_us=random.choice((200, 2_000, 10_000)),
        command_us=random.choice((2_000, 8_000)),
        read=random.choice((0.0, 0.5)),
        payload=0,
        batch=1,
    )


def moving(seed: int, voters: int | None = None) -> Swarm:
    """Members come and go all the time while leaders change; old leaders go on unheard and change members as well."""
    random = Random(f"moving {seed}")
    patient = random.random() < 0.4
    return replace(
        mixed(seed, voters or random.choice((1, 1, 2, 3, 3, 4))),
        spares=random.choice((2, 4)),
        membership=random.choice((0.2, 0.6, 1.0)),
        pre_vote=patient,
        check_quorum=patient,
        campaign=random.choice((0.0, 0.1, 0.3)),
        cut=random.choice((0.02, 0.1, 0.2)),
        cut_us=300_000,
        crash=random.choice((0.0, 0.02, 0.06)),
        election_ticks=random.choice((3, 5)),
        heartbeat_ticks=1,
        fault_us=random.choice((5_000, 20_000)),
        command_us=random.choice((20_000, 60_000)),
        delay_us=random.choice((200, 2_000)),
        jitter_us=random.choice((1_000, 6_000)),
        sync_us=random.choice((200, 2_000, 10_000)),
        power_cut=0.0,
        batch=1,
    )


def worn(seed: int, swarm: Swarm) -> Swarm:
    """The same with storage that fails, snapshots in pieces and members that are lost and replaced."""
    random = Random(f"worn {seed}")
    pick = random.choice
    return replace(
        swarm,
        snapshot_every=swarm.snapshot_every or pick((0, 10)),
        pieces=pick((1, 3, 10)),
        stall=pick((0.0, 0.0, 0.01, 0.05)),
        write_error=pick((0.0, 0.02, 0.1)),
        stops=pick((0.0, 0.2, 0.5)),
        damage=pick((0.0, 0.02, 0.1)),
        old_directory=pick((0.0, 0.02, 0.1)),
        snapshot_now=pick((0.0, 0.05, 0.3)),
        linger_us=pick((300_000, 300_000, 3_000_000)),
        step_fault=pick((0.0, 0.3)),
        early=pick((0.0, 0.5)),
        cut_transfer=pick((0.0, 0.0, 0.05)),
        same_number=pick((0.0, 0.5, 1.0)),
    )


def replacing(seed: int, swarm: Swarm) -> Swarm:
    """Members are lost for ever all the time, and at every step of replacing them something fails."""
    random = Random(f"replacing {seed}")
    pick = random.choice
    return replace(
        worn(seed, swarm),
        write_error=pick((0.05, 0.2)),
        stops=pick((0.5, 1.0)),
        damage=pick((0.05, 0.2)),
        old_directory=pick((0.05, 0.2)),
        snapshot_every=pick((4, 10, 40)),
        step_fault=pick((0.3, 0.7)),
        early=pick((0.0, 0.5, 1.0)),
        power_cut=0.0,
    )


THEMES: tuple[Callable[[int, int | None], Swarm], ...] = (mixed, storm, mixed, moving)
"""How seeds draw their options, in turn: what random mixes find seldom has a theme of its own."""


def draw(seed: int, voters: int | None = None) -> Swarm:
    """The options of a seed; `voters` overrides its own choice. Of four rounds of themes one has disks that only
    lose what was not synced, two are worn, and in one members are replaced."""
    swarm = unlimited(seed, voters)
    appends = Random(f"appends {seed}").choice((1, 2, 2, ANY_APPENDS))
    return replace(swarm, max_inflight_appends=appends)


def resting(seed: int, voters: int | None = None) -> Swarm:
    """The options of a seed with little to do, so that members rest most of the time."""
    random = Random(f"resting {seed}")
    return replace(
        draw(seed, voters),
        rests=True,
        command_us=random.choice((60_000, 300_000, 1_000_000)),
        fault_us=random.choice((50_000, 200_000, 500_000)),
    )


def unlimited(seed: int, voters: int | None = None) -> Swarm:
    """The same without a limit to unanswered appends, as seeds drew them when some found what is kept as a test."""
    swarm = plain(seed, voters)
    kind = seed // len(THEMES) % 4
    if kind == 0:
        return swarm
    return replacing(seed, swarm) if kind == 3 else worn(seed, swarm)


def plain(seed: int, voters: int | None = None) -> Swarm:
    """The options of a seed without worn storage."""
    return THEMES[seed % len(THEMES)](seed, voters)
