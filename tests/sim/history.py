"""What a replicated log promises to those outside it, checked over what clients and state machines saw.

Knows nothing of Raft, nor of which core is under it: the same checker judges fluxmq.raft and stock pysyncobj, so
that its silence about one is worth what its complaints about the other are. Three promises: an index holds one
command for ever, whichever member applies it and however often it restarts (state-machine safety); a command that
a client was told is committed is in every member's log at its index in the end; and every member gets there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VIOLATIONS_MAX = 20
"""A broken core violates at every step from some point on; the first few say it all."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept. `rule` is its short name, `time_us` virtual."""

    rule: str
    what: str
    time_us: int

    def __str__(self) -> str:
        return f"{self.time_us / 1e6:.6f} s: {self.rule}: {self.what}"


class History:
    """Commands are numbers from 1; whatever else a log holds (empty entries, membership) is 0."""

    def __init__(self) -> None:
        self.now_us = 0
        """Set by whoever owns the virtual clock."""
        self.violations: list[Violation] = []
        self.chosen: dict[int, int] = {}
        """Index to the command that the first member applied there."""
        self.states: dict[int, int] = {}
        """Index to the chained hash of the first state machine that came there."""
        self.acknowledged: dict[int, int] = {}
        """Command to the index at which its client was told it is."""
        self.last_acknowledged = 0

    def violated(self, rule: str, what: str) -> None:
        """Keep a violation, up to VIOLATIONS_MAX."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(rule, what, self.now_us))

    def applied(self, member: int, index: int, command: int) -> None:
        """A member's state machine was given `command` as its `index`-th."""
        if self.chosen.setdefault(index, command) != command:
            self.violated(
                "state-machine safety",
                f"member {member} applied command {command} at {index}, where another member"
                f" had applied {self.chosen[index]}",
            )

    def came_to(self, member: int, index: int, state: int) -> None:
        """A member's state machine has the chained hash `state` after its `index`-th command."""
        if self.states.setdefault(index, state) != state:
            self.violated(
                "state hashes", f"member {member} differs at {index} from who came there first"
            )

    def acknowledge(self, index: int, command: int) -> None:
        """A client was told that its command is committed at `index`."""
        if self.acknowledged.setdefault(command, index) != index:
            self.violated("acknowledged once", f"command {command} at {index} and elsewhere")
        self.last_acknowledged = max(self.last_acknowledged, index)

    def finish(self, contents: Mapping[int, Mapping[int, int]]) -> None:
        """Faults have ended long ago: `contents` is what each member's state machine holds, index to command."""
        for member, content in contents.items():
            last = max(content, default=0)
            lost = [
                command
                for command, index in self.acknowledged.items()
                if index <= last and content.get(index) != command
            ]
            if lost:
                self.violated(
                    "acknowledged commands stay",
                    f"member {member} lacks {len(lost)} of {len(self.acknowledged)} acknowledged"
                    f" commands, the first {lost[0]} at {self.acknowledged[lost[0]]}",
                )
            if last < self.last_acknowledged:
                self.violated(
                    "members catch up",
                    f"member {member} ends at {last}, acknowledged is {self.last_acknowledged}",
                )
