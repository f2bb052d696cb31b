"""Questions from shard to shard: each is answered once, whatever becomes of who was asked."""

from fluxmq.ipc.messages import ERROR_AWAY, ERROR_NOT_FOUND, Failure, MessageError
from fluxmq.replication.questions import QUESTION_SECONDS_MAX, QUESTIONS_MAX, Questions


class Way:
    """A link to one shard, and what it was given."""

    def __init__(self, peer):
        self.peer = peer
        self.up = True
        self.backlog_bytes = 0
        self.sent = []

    def send_control(self, name, *arguments):
        self.sent.append((name, *arguments))

    def send_frame(self, frame):
        raise AssertionError(frame)


class Two:
    """Two shards that ask each other; what is sent is taken by hand."""

    def __init__(self, serve):
        self.now = 0.0
        self.asking = Questions(lambda *_: None, lambda: self.now)
        self.asked = Questions(serve, lambda: self.now)
        self.there, self.back = Way(2), Way(1)
        self.answers = []

    def ask(self, body):
        self.asking.ask(self.there, "raft", body, self.answers.append)

    def deliver(self):
        for name, *arguments in self.there.sent:
            self.asked.handlers()[name](self.back, *arguments)
        for name, *arguments in self.back.sent:
            self.asking.handlers()[name](self.there, *arguments)
        self.there.sent.clear()
        self.back.sent.clear()


def test_an_answer_and_a_refusal():
    def serve(kind, body, answered):
        answered({"kind": kind, **body} if body else Failure(ERROR_NOT_FOUND, "nothing"))

    two = Two(serve)
    two.ask({"group": "g"})
    two.ask({})
    two.deliver()
    assert two.answers == [{"kind": "raft", "group": "g"}, Failure(ERROR_NOT_FOUND, "nothing")]


def test_what_is_not_understood_is_answered_all_the_same():
    def serve(_kind, _body, _answered):
        raise MessageError("no group")

    two = Two(serve)
    two.ask({})
    two.deliver()
    assert two.answers[0].text == "no group"


def test_a_shard_that_goes_or_takes_too_long_has_not_answered():
    call_later = []
    two = Two(lambda _kind, _body, answered: call_later.append(answered))
    two.ask({"group": "g"})
    two.ask({"group": "h"})
    two.deliver()
    two.asking.lost(3)
    assert two.answers == []
    call_later[0]({"late": False})
    two.deliver()
    two.asking.lost(2)
    assert two.answers[0] == {"late": False}
    assert two.answers[1].code == ERROR_AWAY
    two.ask({"group": "i"})
    two.now = QUESTION_SECONDS_MAX
    two.asking.housekeeping()
    assert two.answers[2] == Failure(ERROR_AWAY, "no answer in time")
    call_later[1]({"late": True})  # too late: nobody waits for it
    two.deliver()
    assert len(two.answers) == 3


def test_nobody_answers_for_another():
    two = Two(lambda _kind, _body, answered: answered({}))
    two.ask({})
    number = two.there.sent[0][1]
    two.asking.handlers()["answer"](Way(3), number, "", {"from": "a stranger"})
    assert two.answers == []


def test_questions_are_bounded_and_go_nowhere_without_a_way():
    two = Two(lambda *_: None)
    two.there.up = False
    two.ask({})
    assert two.answers.pop().code == ERROR_AWAY
    two.there.up = True
    for _ in range(QUESTIONS_MAX):
        two.ask({})
    assert two.answers == []
    two.ask({})
    assert f"{QUESTIONS_MAX} questions" in two.answers[0].text
