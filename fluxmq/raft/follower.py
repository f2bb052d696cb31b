"""A follower's handling of its leader's messages: append entries, learn the commit index, install
snapshots.

Two rules ensure safety here. A log is cut only where it conflicts, never because a message ends
(``Log.accept``). And the commit index rises no further than the message at hand proves to be the
leader's own log: the end of the entries it brought, not the end of this log, which may hold entries
of another leader (paper figure 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxmq.raft.errors import InconsistentLog, MalformedMessage
from fluxmq.raft.memberships import Memberships, decode_membership
from fluxmq.raft.state import NodeState
from fluxmq.raft.types import MEMBERSHIP, Entry, Message, MessageKind


def on_append(state: NodeState, message: Message) -> None:
    """Append entries if their predecessor matches, or hint where the logs may match (sections 5.3
    and 5.4).

    Raises MalformedMessage when the entries do not follow each other.
    """
    log = state.log
    for index, entry in enumerate(message.entries, message.index + 1):
        if entry.index != index or entry.term > message.term:
            raise MalformedMessage(f"entry {entry.index} of term {entry.term} at {index}")
    answer = Message(MessageKind.APPEND_ANSWER, state.id, message.source, state.term)
    if message.index < log.commit:
        # Committed entries are the leader's too, so this is an old message and this answer is
        # valid.
        answer.index = log.commit
    elif log.matches(message.index, message.log_term):
        changed_from = log.accept(message.entries)
        if changed_from is not None:
            _take_memberships(state, changed_from, message.entries)
        proven = message.index + len(message.entries)
        if message.commit > log.commit:
            log.commit = max(log.commit, min(message.commit, proven))
        answer.index = proven
    else:
        answer.reject = True
        answer.index = message.index
        answer.hint, answer.hint_term = log.last_possible_match(
            min(message.index, log.last_index), message.log_term, log.commit
        )
    state.answer(answer)


def _take_memberships(state: NodeState, changed_from: int, entries: Sequence[Entry]) -> None:
    """Undo memberships cut from an index on, and take those of the new entries."""
    state.memberships.cut(changed_from)
    for entry in entries:
        if entry.kind == MEMBERSHIP and entry.index >= changed_from:
            state.memberships.append(entry.index, decode_membership(entry.data))


def on_heartbeat(state: NodeState, message: Message) -> None:
    """Note that the leader is alive, and commit the part of this log that it has proved.

    Raises InconsistentLog when the log ends before: it has lost what it had acknowledged.
    """
    log = state.log
    if message.commit > log.commit:
        if message.commit > log.last_index:
            raise InconsistentLog(
                f"node {message.source} was told that entry {message.commit} is held here; "
                f"the log ends at {log.last_index}"
            )
        log.commit = message.commit
    state.send(
        Message(
            MessageKind.HEARTBEAT_ANSWER,
            state.id,
            message.source,
            state.term,
            context=message.context,
        )
    )


def on_snapshot(state: NodeState, message: Message) -> None:
    """Install a snapshot unless this log has all of it; the answer waits for durability (section
    7).

    Raises MalformedMessage when there is none in the message.
    """
    log = state.log
    snapshot = message.snapshot
    if snapshot is None:
        raise MalformedMessage("a SNAPSHOT without a snapshot")
    mark = snapshot.mark
    answer = Message(MessageKind.APPEND_ANSWER, state.id, message.source, state.term)
    if mark.index > log.commit:
        if log.matches(mark.index, mark.term):
            # The entries are here; only their commit was unknown.
            log.commit = mark.index
        else:
            log.restore(snapshot)
            state.memberships = Memberships(mark.index, mark.membership)
    answer.index = log.commit
    state.answer(answer)
