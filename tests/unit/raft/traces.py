"""Traces: a file of commands to a cluster, each with what it is expected to show (in the manner of etcd's raft).

A block is a command, a line of four dashes, and the output up to an empty line. Lines that begin with # are comments.
`python -m tests.unit.raft.traces FILE...` writes the present output into the files, to be read before it is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fluxmq.raft.memberships import decode_membership
from fluxmq.raft.types import (
    EMPTY,
    MEMBERSHIP,
    ChangeRefused,
    ChangeVerb,
    Entry,
    Membership,
    MembershipChange,
    Message,
    MessageKind,
    NotLeader,
    ProposalAccepted,
    Ready,
)
from tests.unit.raft.cluster import Cluster, Disk


class Block(NamedTuple):
    """A command with the comments before it and the output expected of it."""

    comments: list[str]
    command: str
    expected: str


def read_blocks(text: str) -> Iterator[Block]:
    """The blocks of a trace file."""
    for part in text.strip().split("\n\n"):
        head, dashes, expected = part.partition("\n----")
        lines = head.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        commands = [line for line in lines if not line.startswith("#")]
        assert dashes or not commands, f"no ---- after {commands}"
        assert len(commands) <= 1, f"more than one command: {commands}"
        yield Block(comments, commands[0] if commands else "", expected.strip("\n"))


def run(text: str) -> list[Block]:
    """The file's blocks with the output that their commands have now."""
    trace = Trace()
    return [
        Block(block.comments, block.command, trace.do(block.command) if block.command else "")
        for block in read_blocks(text)
    ]


def written(blocks: list[Block]) -> str:
    """The text of a trace file."""
    parts = []
    for block in blocks:
        lines = [*block.comments]
        if block.command:
            lines += [block.command, "----", *([block.expected] if block.expected else [])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


# How things are shown


def of_entry(entry: Entry) -> str:
    place = f"{entry.index}/{entry.term}"
    if entry.kind == EMPTY:
        return place
    if entry.kind == MEMBERSHIP:
        return f"{place}={of_membership(decode_membership(entry.data))}"
    return f"{place}:{entry.data.decode()}"


def of_entries(entries: Iterator[Entry] | list[Entry]) -> str:
    return "[" + " ".join(map(of_entry, entries)) + "]"


def of_membership(membership: Membership) -> str:
    text = ",".join(map(str, membership.voters))
    if membership.learners:
        text += "+" + ",".join(map(str, membership.learners))
    return f"({text})"


def of_message(message: Message) -> str:
    words = [f"{message.source}->{message.target} {message.kind.name.lower()} term={message.term}"]
    kind = message.kind
    if kind in (MessageKind.APPEND, MessageKind.VOTE, MessageKind.PRE_VOTE):
        words.append(f"at={message.index}/{message.log_term}")
    if kind is MessageKind.APPEND:
        words.append(f"commit={message.commit} {of_entries(list(message.entries))}")
    if kind is MessageKind.HEARTBEAT:
        words.append(f"commit={message.commit}")
    if message.context:
        words.append(f"context={message.context}")
    if kind is MessageKind.APPEND_ANSWER:
        words.append(f"index={message.index}")
    if message.snapshot is not None:
        mark = message.snapshot.mark
        words.append(f"snapshot={mark.index}/{mark.term}{of_membership(mark.membership)}")
    if message.reject:
        words.append("REJECT")
        if message.hint:
            words.append(f"hint={message.hint}/{message.hint_term}")
    return " ".join(words)


def of_ready(ready: Ready) -> Iterator[str]:
    yield f"role={ready.role.value} leader={ready.leader}"
    if ready.hard_state is not None:
        state = ready.hard_state
        yield f"hard state: term={state.term} vote={state.vote} commit={state.commit}"
    if ready.snapshot is not None:
        yield f"snapshot: {ready.snapshot.mark.index}/{ready.snapshot.mark.term}"
    if ready.entries:
        yield f"entries: {of_entries(ready.entries)}"
    if ready.committed:
        yield f"committed: {of_entries(ready.committed)}"
    for message in ready.messages:
        yield f"at once: {of_message(message)}"
    for message in ready.messages_after_persistence:
        yield f"after persistence: {of_message(message)}"
    for context, index in ready.reads:
        yield f"read {context} at {index}"
    for context in ready.reads_failed:
        yield f"read {context} failed"
    for peer in ready.snapshot_wanted:
        yield f"snapshot wanted for {peer}"


class Trace:
    """A cluster under a trace's commands."""

    def __init__(self) -> None:
        self.cluster = Cluster(0)

    def do(self, command: str) -> str:
        """Run a command; its output."""
        name, *words = command.split()
        act: Callable[..., object] = getattr(self, "do_" + name)
        shown = act(*words)
        lines = [] if shown is None else [shown] if isinstance(shown, str) else list(shown)  # type: ignore[call-overload]
        return "\n".join(lines) or "ok"

    def do_cluster(self, voters: str, *words: str) -> None:
        """cluster VOTERS [learners=N] [strangers=N] [option=value ...]"""
        options = dict(word.split("=") for word in words)
        strangers = int(options.pop("strangers", 0))
        learners = int(options.pop("learners", 0))
        numbers = {
            name: {"true": True, "false": False}.get(value) for name, value in options.items()
        }
        self.cluster = Cluster(
            int(voters),
            learners,
            None,
            **{
                name: int(options[name]) if value is None else value
                for name, value in numbers.items()
            },
        )
        first = int(voters) + learners + 1
        for number in range(first, first + strangers):
            self.cluster.add(number, Disk(Membership(())))

    def do_disk(self, number: str, *terms: str) -> None:
        """disk N TERM... : the node starts with a log of these terms"""
        entries = [
            Entry(int(term), index, 0, f"{index}.{term}".encode())
            for index, term in enumerate(terms, 1)
        ]
        self.cluster.add(int(number), Disk(self.cluster.membership, entries))

    # What happens to a node

    def do_campaign(self, number: str) -> None:
        """campaign N"""
        self.cluster[int(number)].node.campaign()

    def do_tick(self, number: str, times: str = "1") -> None:
        """tick N [TIMES]"""
        for _ in range(int(times)):
            self.cluster[int(number)].node.tick()

    def do_propose(self, number: str, *data: str) -> str:
        """propose N DATA..."""
        return self._outcome(
            self.cluster[int(number)].node.propose([each.encode() for each in data])
        )

    def do_change(self, number: str, verb: str, node: str) -> str:
        """change N add_voter|add_learner|remove NODE"""
        wanted = MembershipChange(ChangeVerb[verb.upper()], int(node))
        return self._outcome(self.cluster[int(number)].node.propose_membership(wanted))

    def _outcome(self, outcome: object) -> str:
        if isinstance(outcome, ProposalAccepted):
            return f"accepted {outcome.first_index}/{outcome.term}"
        if isinstance(outcome, NotLeader):
            return f"not leader, ask {outcome.leader}"
        if isinstance(outcome, ChangeRefused):
            return outcome.value
        return str(outcome)

    def do_read(self, number: str, context: str) -> str | None:
        """read N CONTEXT"""
        outcome = self.cluster[int(number)].node.read_index(int(context))
        return None if outcome is None else self._outcome(outcome)

    def do_transfer(self, number: str, to: str) -> str:
        """transfer N TO"""
        return "ok" if self.cluster[int(number)].node.transfer_leadership(int(to)) else "refused"

    def do_crash(self, number: str) -> None:
        """crash N: what is not synced is lost"""
        self.cluster[int(number)].crash()

    def do_compact(self, number: str) -> str:
        """compact N: a snapshot takes the place of what is applied"""
        mark = self.cluster[int(number)].compact()
        return f"{mark.index}/{mark.term}{of_membership(mark.membership)}"

    def do_snapshot(self, number: str, peer: str, ok: str = "ok") -> str:
        """snapshot N PEER [failed]: the snapshot is put on the network whole, or is reported lost"""
        host = self.cluster[int(number)]
        message = host.node.offer_snapshot(int(peer), host.snapshot())
        if message is None:
            return "not wanted"
        if ok == "ok":
            self.cluster.post([message])
        host.node.report_snapshot(int(peer), ok=ok == "ok")
        return of_message(message)

    # What a host does

    def do_ready(self, number: str) -> Iterator[str]:
        """ready N: take what is ready; writes begin, messages that may go at once go"""
        host = self.cluster[int(number)]
        before = len(host.writes)
        host.collect()
        for ready in list(host.writes)[before:]:
            yield from of_ready(ready)

    def do_sync(self, number: str, most: str = "999") -> Iterator[str]:
        """sync N [WRITES]: complete writes; what waited for them goes"""
        before = len(self.cluster.network)
        if not self.cluster[int(number)].sync(int(most)):
            yield "nothing to sync"
        yield from map(of_message, self.cluster.network[before:])

    def do_deliver(self, *words: str) -> Iterator[str]:
        """deliver [from=N] [to=N] [kind=NAME] [drop] [keep]: deliver, lose, or deliver copies of messages"""
        wanted = dict(word.split("=") for word in words if "=" in word)
        now, self.cluster.network = self.cluster.network, []
        for message in now:
            fits = (
                wanted.get("from", str(message.source)) == str(message.source)
                and wanted.get("to", str(message.target)) == str(message.target)
                and wanted.get("kind", message.kind.name.lower()) == message.kind.name.lower()
            )
            if not fits or "keep" in words:
                self.cluster.network.append(message)
            if fits:
                yield of_message(message)
                if (
                    "drop" not in words
                    and (message.source, message.target) not in self.cluster.cuts
                ):
                    self.cluster[message.target].node.step(message)

    def do_settle(self, *words: str) -> Iterator[str]:
        """settle [quiet] [without=N]: deliver and sync until nothing happens any more, except at N"""
        wanted = dict(word.split("=") for word in words if "=" in word)
        left_out = int(wanted.get("without", 0))
        busy = True
        while busy:
            busy = False
            for number, member in self.cluster.members.items():
                if number != left_out:
                    busy = member.collect() or busy
                    busy = member.sync() or busy
                    busy = member.collect() or busy
            now, self.cluster.network = self.cluster.network, []
            for message in now:
                if message.target == left_out:
                    self.cluster.network.append(message)
                    continue
                busy = True
                if "quiet" not in words:
                    yield of_message(message)
                self.cluster[message.target].node.step(message)
        self.cluster.check_logs()

    def do_cut(self, number: str) -> None:
        """cut N: nothing comes to it or leaves it"""
        self.cluster.cut(int(number))

    def do_heal(self) -> None:
        """heal"""
        self.cluster.heal()

    # What is the case

    def do_status(self, *numbers: str) -> Iterator[str]:
        """status [N...]"""
        for number, member in self.cluster.members.items():
            if numbers and str(number) not in numbers:
                continue
            status = member.node.status()
            yield (
                f"{number}: {status.role.value} term={status.term} vote={status.vote} "
                f"leader={status.leader} commit={status.commit} applied={status.applied} "
                f"persisted={status.persisted} last={status.last_index} "
                f"members={of_membership(status.membership)}"
            )

    def do_progress(self, number: str) -> Iterator[str]:
        """progress N: what the leader knows of its peers"""
        for peer, each in self.cluster[int(number)].node.status().progress.items():
            learner = " learner" if each.learner else ""
            yield (
                f"{peer}: {each.state.value} match={each.match} next={each.next} "
                f"inflight={each.inflight_bytes}{learner}"
            )

    def do_log(self, *numbers: str) -> Iterator[str]:
        """log [N...]: what is durable"""
        for number, member in self.cluster.members.items():
            if not numbers or str(number) in numbers:
                disk = member.disk
                snapshot = (
                    f"snapshot {disk.mark.index}/{disk.mark.term} " if disk.mark.index else ""
                )
                yield f"{number}: {snapshot}{of_entries(disk.log)}"

    def do_network(self) -> Iterator[str]:
        """network: what is on its way"""
        yield from map(of_message, self.cluster.network)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(written(run(path.read_text("utf-8"))), "utf-8")
