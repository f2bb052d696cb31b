"""What runs there are: each is data: how many nodes, which faults in what order and for how long, which kinds of clients."""

from __future__ import annotations

from typing import NamedTuple

from tests.chaos import disks, faults, mirrors, operators, partitions
from tests.chaos.faults import Fault


class Step(NamedTuple):
    """A fault of the schedule. ``lasting``: how many seconds, one of these by chance; ``pause``: until the next."""

    fault: type[Fault]
    lasting: tuple[float, ...]
    pause: float = 5.0


class Configuration(NamedTuple):
    """One run. The steps follow each other and begin again until the time is up.

    ``proxied``: nodes reach each other through proxies; ``tls``: they speak TLS; ``declared``: AMQP clients declare a quorum
    queue, too; ``dead_letters``: some messages are rejected; ``cores``: processors that the nodes have, all if empty;
    ``workers``: shards of each node.
    """

    name: str
    steps: tuple[Step, ...]
    nodes: int = 3
    proxied: bool = False
    tls: bool = False
    declared: bool = True
    dead_letters: bool = False
    cores: str = ""
    checkpoint_interval: str = "200ms"
    """Short: the log behind is released at once, so that whoever was away needs a snapshot."""
    workers: int = 1
    mirrors: str = ""
    """``ha-promote-on-failure`` of the policy that mirrors the queues of the run; empty: other queues, none mirrored."""
    pair: bool = False
    """They are mirrored on two nodes of three, not on all."""


RABBIT_PAUSE_S = 10.0
"""Between partitions, as in RabbitMQ's own runs."""


def _steps(lasting: tuple[float, ...], *kinds: type[Fault], pause: float = 5.0) -> tuple[Step, ...]:
    return tuple(Step(kind, lasting, pause) for kind in kinds)


CONFIGURATIONS = (
    Configuration(
        "random-node",
        _steps((10.0,), partitions.RandomNode, operators.Pinned, partitions.LeaderNode, pause=10.0),
        workers=2,
    ),
    Configuration("halves", _steps((30.0,), partitions.Halves, pause=RABBIT_PAUSE_S)),
    Configuration(
        "ring", _steps((10.0,), partitions.Ring, pause=RABBIT_PAUSE_S), nodes=5, workers=2
    ),
    Configuration("bridge", _steps((10.0,), partitions.Bridge, pause=RABBIT_PAUSE_S), nodes=5),
    Configuration("halves-of-five", _steps((10.0, 30.0), partitions.Halves), nodes=5, workers=2),
    Configuration("asymmetric", _steps((10.0,), partitions.OneWay), workers=2),
    Configuration("ports-split", _steps((15.0,), partitions.PortsSplit), proxied=True),
    Configuration("slow-links", _steps((30.0,), partitions.Slow), proxied=True),
    Configuration("broken-links", _steps((10.0,), partitions.Broken), proxied=True),
    Configuration(
        "shard-kill",
        _steps((1.0,), faults.Killed, operators.Pinned, pause=9.0),
        cores="0",
        workers=2,
    ),
    Configuration(
        "supervisor-kill",
        _steps((2.0,), faults.SupervisorKilled, faults.AcceptorKilled, pause=15.0),
        workers=2,
    ),
    Configuration(
        "node-kill-tls",
        _steps((10.0,), faults.NodeKilled, operators.KilledWhilePinned, pause=10.0),
        tls=True,
        workers=2,
    ),
    Configuration(
        "leader-stop",
        (*_steps((3.0, 8.0, 20.0), faults.Stopped), Step(operators.Pinned, (3.0,))),
        workers=2,
    ),
    Configuration(
        "kill-and-stop",
        _steps((3.0, 8.0), faults.NodeKilled, faults.Stopped),
        dead_letters=True,
        workers=2,
    ),
    Configuration("power-one", _steps((2.0,), operators.Pinned, disks.PowerCut), workers=2),
    Configuration("power-all", _steps((0.5,), disks.AllPowerCut, pause=15.0)),
    Configuration("power-points", _steps((6.0,), disks.Failpoint)),
    Configuration("disk-full", _steps((10.0,), disks.DiskFull)),
    Configuration("disk-failed", _steps((5.0,), disks.DiskFailed)),
    Configuration("bits-flipped", _steps((2.0,), disks.BitsFlipped, pause=10.0)),
    Configuration(
        "old-directory",
        (
            Step(disks.OldDirectory, (15.0,)),
            Step(faults.ClockShifted, (10.0,)),
            *_steps((8.0,), faults.WallClockSet, faults.WallClockWrong),
        ),
    ),
    Configuration(
        "membership",
        _steps((8.0,), operators.Reshaped, operators.Pinned, operators.KilledWhileReshaped),
        workers=2,
    ),
    Configuration(
        "transfer",
        _steps(
            (3.0,),
            operators.Transferred,
            operators.Pinned,
            operators.Rebalanced,
            operators.Migrated,
        ),
        workers=2,
    ),
    Configuration(
        "dead-letters", _steps((10.0,), partitions.Halves, pause=RABBIT_PAUSE_S), dead_letters=True
    ),
)
"""Those of a full campaign; each may also be run with ``distribution_mode: replicate``."""

MIRRORS = (
    Configuration(
        "mirrors-leader",
        _steps((4.0, 14.0), faults.NodeKilled, mirrors.HeldUp, mirrors.HeldUpForLong),
        mirrors="when-synced",
    ),
    Configuration(
        "mirrors-random-node",
        _steps((10.0, 20.0), partitions.LeaderNode, partitions.RandomNode, pause=10.0),
        mirrors="when-synced",
        workers=2,
    ),
    Configuration(
        "mirrors-halves",
        _steps((30.0, 10.0), partitions.Halves, pause=RABBIT_PAUSE_S),
        mirrors="when-synced",
    ),
    Configuration(
        "mirrors-stop",
        _steps((4.0, 14.0), mirrors.LeaderStopped, mirrors.StoppedInTurn),
        mirrors="when-synced",
        workers=2,
    ),
    Configuration(
        "mirrors-power",
        _steps((2.0, 14.0), disks.PowerCut, disks.AllPowerCut, pause=10.0),
        mirrors="when-synced",
    ),
    Configuration(
        "mirrors-frozen", _steps((8.0, 20.0), faults.Stopped, pause=10.0), mirrors="when-synced"
    ),
    Configuration(
        "mirrors-shards",
        _steps((3.0,), faults.Killed, operators.Pinned, operators.KilledWhilePinned),
        mirrors="when-synced",
        workers=2,
    ),
    Configuration(
        "mirrors-waits",
        _steps((14.0,), mirrors.LeaderApart, pause=10.0),
        mirrors="when-synced",
        pair=True,
    ),
    Configuration(
        "mirrors-always",
        _steps((14.0,), mirrors.LeaderApart, pause=10.0),
        mirrors="always",
        pair=True,
    ),
)
"""With mirrored classic queues instead of others."""

SHORT = (
    Configuration(
        "short",
        (
            Step(faults.NodeKilled, (2.0,), 3.0),
            Step(partitions.LeaderNode, (3.0,), 3.0),
        ),
    ),
    Configuration(
        "alone",
        (Step(faults.Killed, (0.5,), 3.0), Step(disks.AllPowerCut, (0.2,), 3.0)),
        nodes=1,
        declared=False,
        dead_letters=True,
    ),
    Configuration("calm", (), dead_letters=True),
    Configuration(
        "mirrors-held", _steps((14.0,), mirrors.HeldUp, pause=2.0), mirrors="when-synced"
    ),
    Configuration(
        "mirrors-held-pair",
        _steps((14.0,), mirrors.HeldUp, pause=2.0),
        mirrors="when-synced",
        pair=True,
    ),
    Configuration(
        "mirrors-silent",
        _steps((14.0,), mirrors.HeldUpForLong, pause=2.0),
        mirrors="when-synced",
        pair=True,
    ),
    Configuration(
        "pin", _steps((2.0, 5.0), operators.Pinned, operators.KilledWhilePinned), workers=2
    ),
    Configuration(
        "pin-alone",
        (
            Step(operators.Pinned, (1.0,), 3.0),
            Step(faults.Killed, (0.5,), 3.0),
            Step(operators.Pinned, (1.0,), 0.5),
            Step(disks.AllPowerCut, (0.2,), 3.0),
        ),
        nodes=1,
        declared=False,
        workers=2,
    ),
    Configuration(
        "clocks", _steps((4.0, 8.0), faults.WallClockSet, faults.WallClockWrong), dead_letters=True
    ),
)
"""Beside the campaign: for CI, for one node without a cluster, with no faults at all, for the control of mirrored queues, with groups
that move, and with clocks alone."""

BY_NAME = {each.name: each for each in (*CONFIGURATIONS, *MIRRORS, *SHORT)}
