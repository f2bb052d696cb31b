"""Faults and their frequencies for one seed of moving sessions. As in ``tests.sim.swarm``, every seed leaves most
faults out or overdoes some. Times are virtual seconds."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

FAULTS = (
    "cut",
    "hold",
    "undecided",
    "away",
    "no_etcd",
    "lost_answer",
    "crash",
    "stop",
    "slow_disk",
)
"""Streams of two nodes end, or carry nothing; etcd does not decide; the control process is away; a node does not
reach etcd; answers are lost; a node crashes, or stops and goes on; its disks take nothing."""


@dataclass(slots=True)
class Swarm:
    """The options of one run."""

    workers: tuple[int, ...]
    """Shards of each node."""
    clients: int
    rates: dict[str, float]
    """Chance of each fault at a step."""
    fault_seconds: float
    """Mean duration of a fault."""
    step_seconds: float
    """Mean pause between two steps; half of them have none."""
    drift: float
    """Seconds of etcd's clock in one of the nodes'."""
    clean: float
    """Connections with a clean start."""
    polite: float
    """Chance that a client answers a message at once."""
    qos_2: float
    """Messages with QoS 2."""


def draw(seed: int, _voters: int | None = None) -> Swarm:
    """Return the options of a seed."""
    random = Random(f"sessions {seed}")
    pick, chance = random.choice, random.random
    rates = {each: pick((0.01, 0.03, 0.08)) if chance() < 0.4 else 0.0 for each in FAULTS}
    return Swarm(
        workers=pick(((1, 1), (1, 1, 1), (1, 1, 1), (2, 1, 1))),
        clients=pick((1, 2, 3)),
        rates=rates,
        fault_seconds=pick((0.5, 3.0, 12.0)),
        step_seconds=pick((0.05, 0.3, 1.0)),
        drift=pick((0.95, 1.0, 1.0, 1.05)),
        clean=pick((0.0, 0.0, 0.1)),
        polite=pick((0.3, 0.8, 1.0)),
        qos_2=pick((0.0, 0.5, 1.0)),
    )
