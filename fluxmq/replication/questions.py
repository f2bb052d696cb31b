"""Questions from shard to shard, within this node and beyond, that only the shard asked can answer.

A question is a kind and a body, like control's requests; its answer is a body or a failure.
Questions to a shard that goes away fail, and so do those that are not answered in time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fluxmq.ipc.conversation import Answered
from fluxmq.ipc.messages import ERROR_AWAY, ERROR_FAILED, Body, Failure, MessageError
from fluxmq.net.links import FrameLink

QUESTION_SECONDS_MAX = 2.0
"""Time to wait for an answer: less than control waits for this shard's."""
QUESTIONS_MAX = 1024
"""Maximum number of open questions; more are refused at once."""

Serve = Callable[[str, Body, Answered], None]


@dataclass(slots=True)
class _Question:
    peer: int
    deadline: float
    answered: Answered


class Questions:
    """Asks other shards, and answers theirs by ``serve``, which may raise MessageError.

    ``seconds``: time to wait for an answer.
    """

    def __init__(
        self, serve: Serve, now: Callable[[], float], seconds: float = QUESTION_SECONDS_MAX
    ) -> None:
        self._serve = serve
        self._now = now
        self._seconds = seconds
        self._numbers = itertools.count(1)
        self._open: dict[int, _Question] = {}

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Return the handlers of control frames by name."""
        return {"question": self._on_question, "answer": self._on_answer}

    def ask(self, link: FrameLink, kind: str, body: Body, answered: Answered) -> None:
        """Ask a shard; ``answered`` is called once."""
        if not link.up:
            answered(Failure(ERROR_AWAY, "the shard that was asked cannot be reached"))
        elif len(self._open) >= QUESTIONS_MAX:
            answered(Failure(ERROR_FAILED, f"{QUESTIONS_MAX} questions wait for an answer"))
        else:
            number = next(self._numbers)
            deadline = self._now() + self._seconds
            self._open[number] = _Question(link.peer, deadline, answered)
            link.send_control("question", number, kind, dict(body))

    def lost(self, peer: int) -> None:
        """Fail the questions to a shard that has gone."""
        self._fail(lambda each: each.peer == peer, "the shard that was asked has gone")

    def housekeeping(self) -> None:
        """Fail the questions that were not answered in time."""
        now = self._now()
        self._fail(lambda each: each.deadline <= now, "no answer in time")

    def _fail(self, which: Callable[[_Question], bool], why: str) -> None:
        for number, question in list(self._open.items()):
            if which(question) and self._open.pop(number, None) is not None:
                question.answered(Failure(ERROR_AWAY, why))

    def _on_question(self, link: FrameLink, number: int, kind: str, body: Body) -> None:
        def answered(answer: Body | Failure) -> None:
            if not link.up:
                return
            if isinstance(answer, Failure):
                link.send_control("answer", number, answer.code, answer.to_body())
            else:
                link.send_control("answer", number, "", dict(answer))

        try:
            self._serve(kind, body, answered)
        except MessageError as problem:
            answered(Failure(problem.code, str(problem)))

    def _on_answer(self, link: FrameLink, number: int, code: str, body: Any) -> None:
        question = self._open.get(number)
        if question is None or question.peer != link.peer:
            return
        del self._open[number]
        try:
            question.answered(Failure.from_body(body) if code else body)
        except MessageError as problem:
            question.answered(Failure(problem.code, str(problem)))
