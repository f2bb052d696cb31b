"""Becoming leader: campaigns, votes, and when a vote is granted (paper sections 5.2 and 5.4.1).

Vote requests leave only after the candidate's own vote is durable, so that no vote can arrive for a
candidacy that a crash would forget. Pre-votes change nothing on either side and may leave at once.
"""

from __future__ import annotations

from enum import Enum

from fluxmq.raft.state import NodeState
from fluxmq.raft.types import TRANSFER, Message, MessageKind, Role


class VoteOutcome(Enum):
    """Result of the votes so far."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


class Elections:
    """The votes for and by one node."""

    __slots__ = ("_state", "_transfer", "votes")

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._transfer = False
        self.votes: dict[int, bool] = {}
        """Answers to the current campaign."""

    def campaign(self, *, pre_vote: bool, transfer: bool = False) -> VoteOutcome:
        """Request votes or pre-votes from all voters; return WON if no other vote is needed.

        `transfer`: the leader asked for the campaign, so the others may vote in spite of it.
        """
        state = self._state
        self.votes.clear()
        self._transfer = transfer
        state.leader = 0
        state.reset_timeout()
        if pre_vote:
            state.role = Role.PRE_CANDIDATE
        else:
            state.role = Role.CANDIDATE
            state.enter_term(state.term + 1)
            state.vote = state.id
        outcome = self._record(state.id, granted=True)
        if outcome is VoteOutcome.OPEN:
            self._ask(pre_vote=pre_vote)
        return outcome

    def _ask(self, *, pre_vote: bool) -> None:
        state = self._state
        log = state.log
        kind = MessageKind.PRE_VOTE if pre_vote else MessageKind.VOTE
        term = state.term + 1 if pre_vote else state.term
        context = TRANSFER if self._transfer else 0
        for peer in state.memberships.current.voters:
            if peer == state.id:
                continue
            request = Message(kind, state.id, peer, term, log.last_index, log.last_term)
            request.context = context
            if pre_vote:
                state.send(request)
            else:
                state.answer(request)

    def on_answer(self, message: Message) -> VoteOutcome:
        """Count a vote for the current campaign, if it belongs to it."""
        state = self._state
        if message.kind is MessageKind.PRE_VOTE_ANSWER:
            wanted, term = Role.PRE_CANDIDATE, state.term + 1
        else:
            wanted, term = Role.CANDIDATE, state.term
        if state.role is not wanted or (not message.reject and message.term != term):
            return VoteOutcome.OPEN
        return self._record(message.source, granted=not message.reject)

    def _record(self, node: int, *, granted: bool) -> VoteOutcome:
        """Count a vote: the first one of each voter."""
        voters = self._state.memberships.current.voters
        if node in voters:
            self.votes.setdefault(node, granted)
        needed = len(voters) // 2 + 1
        yes = sum(self.votes.values())
        no = len(self.votes) - yes
        if yes >= needed:
            return VoteOutcome.WON
        if len(voters) - no < needed:
            return VoteOutcome.LOST
        return VoteOutcome.OPEN

    def on_request(self, message: Message) -> None:
        """Grant or refuse a vote: one per term, and only to a log at least as complete (section
        5.4.1).

        A learner votes as well: candidates ask only voters, and the learner may not know yet that
        it is one.
        """
        state = self._state
        pre_vote = message.kind is MessageKind.PRE_VOTE
        kind = MessageKind.PRE_VOTE_ANSWER if pre_vote else MessageKind.VOTE_ANSWER
        free = (
            state.vote == message.source
            or (state.vote == 0 and state.leader == 0)
            or (pre_vote and message.term > state.term)
        )
        complete = (message.log_term, message.index) >= state.end()
        if not (free and complete):
            state.reject(kind, message)
            return
        if not pre_vote:
            state.vote = message.source
            state.elapsed = 0
        state.answer(Message(kind, state.id, message.source, message.term))
