"""Questions of one node's control process to another's, passed on by shards.

A shard has streams to every other node, over which it passes its control process's questions; the
shard that gets one has its own control process answer.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.ipc.conversation import Answered, RequestHandler
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_UNKNOWN_KIND, Body, Failure
from fluxmq.ipc.node_messages import OF_NODE, QUESTIONS, NodeQuestion
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.replication.questions import Questions
from fluxmq.shards.node_paths import PublishLink

ANSWER_SECONDS = 30.0
"""Time for an answer: that for closing all connections of a node."""


class NodeQuestions:
    """Passes questions on, in both directions."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._questions = Questions(self._serve, now, ANSWER_SECONDS)
        self._links: dict[int, PublishLink] = {}
        self._control: RequestSender | None = None

    @property
    def commands(self) -> dict[str, RequestHandler]:
        """Handlers of control's requests."""
        return {OF_NODE: self._ask}

    def connect(self, control: RequestSender) -> None:
        """Have this control process answer other nodes."""
        self._control = control

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames of other nodes by name."""
        return self._questions.handlers()

    def came(self, link: PublishLink) -> None:
        """Note a stream to another node."""
        self._links[link.peer] = link

    def gone(self, link: PublishLink) -> None:
        """Fail the questions that were asked over a stream that has ended."""
        self._links.pop(link.peer, None)
        self._questions.lost(link.peer)

    def frame_handlers(self) -> dict[int, Callable[[PublishLink, bytes], None]]:
        """Return nothing: control frames are enough."""
        return {}

    def housekeeping(self) -> None:
        """Fail questions that have no answer in time; called by the shard's timer."""
        self._questions.housekeeping()

    def _ask(self, body: Body, answered: Answered) -> None:
        question = NodeQuestion.from_body(body)
        for link in self._links.values():
            if link.node == question.node and link.up:
                self._questions.ask(link, question.kind, question.body, answered)
                return
        answered(Failure(ERROR_AWAY, f"{question.node} cannot be reached"))

    def _serve(self, kind: str, body: Body, answered: Answered) -> None:
        if kind not in QUESTIONS:
            answered(Failure(ERROR_UNKNOWN_KIND, f"{kind} is not answered for other nodes"))
        elif self._control is None or not self._control.request(kind, body, answered):
            answered(Failure(ERROR_AWAY, "the control process cannot be reached"))
