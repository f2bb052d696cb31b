"""A process's side of the control connection, without a socket."""

import pytest

from fluxmq.ipc.control_frames import FrameDecoder, FramingError, encode_frame
from fluxmq.ipc.conversation import (
    BACK_OFF_MAX,
    REQUESTS_MAX,
    Conversation,
    Handlers,
    RefusedError,
    back_off,
)
from fluxmq.ipc.messages import (
    COLLECT,
    ERROR,
    ERROR_AWAY,
    ERROR_UNKNOWN_KIND,
    HELLO,
    ID_MAX,
    REPLY,
    STATUS,
    USERS,
    VERSION,
    Body,
    ControlMessage,
    Failure,
    MessageError,
    ProcessHello,
    ProcessNumbers,
    Report,
    error,
)
from fluxmq.ipc.user_messages import Confirmed, Users
from fluxmq.metrics.registry import Sample

ME = ProcessHello("shard", 1, 99)
SAMPLES: tuple[Sample, ...] = (("fluxmq_ticks_total", {}, 5),)


class Process:
    """Handlers that remember."""

    def __init__(self, authenticates=True):
        self.snapshots: list[Users] = []
        self.established = 0
        self.conversation = Conversation(
            ME,
            Handlers(
                collect=lambda: SAMPLES,
                status=lambda: ProcessNumbers(sessions=3),
                users=self.snapshots.append if authenticates else None,
                established=self.establish,
            ),
        )

    def establish(self):
        self.established += 1

    def connect(self):
        """Connect to a control that answers hello; return what is sent from then on."""
        sent: list[bytes] = []
        self.conversation.send = sent.append
        self.conversation.connected()
        self.tell(ControlMessage(REPLY, 1, {}))
        return sent

    def tell(self, *messages):
        sent = b"".join(encode_frame(message.to_wire()) for message in messages)
        answers = self.conversation.receive(sent)
        return [ControlMessage.from_wire(value) for value in FrameDecoder().feed(answers)]


def test_it_says_hello_and_is_established_by_the_answer():
    process = Process()
    (hello,) = FrameDecoder().feed(process.conversation.connected())
    message = ControlMessage.from_wire(hello)
    assert message.kind == HELLO
    assert ProcessHello.from_body(message.body) == ME
    assert not process.conversation.established
    assert process.tell(ControlMessage(REPLY, message.id, {})) == []
    assert process.conversation.established
    process.conversation.disconnected()
    assert not process.conversation.established


def test_it_answers_collect_and_status_with_the_id_asked():
    process = Process()
    report, status = process.tell(ControlMessage(COLLECT, 5, {}), ControlMessage(STATUS, 6, {}))
    assert (report.kind, report.id, status.id) == (REPLY, 5, 6)
    assert Report.from_body(report.body).samples == SAMPLES
    assert ProcessNumbers.from_body(status.body).sessions == 3


def test_snapshots_are_taken_by_revision_and_confirmed():
    process = Process()
    revisions = [3, 3, 2, 5]
    answers = [process.tell(ControlMessage(USERS, 1, Users(r, ()).to_body()))[0] for r in revisions]
    assert [users.revision for users in process.snapshots] == [3, 5]
    assert [Confirmed.from_body(answer.body).revision for answer in answers] == [3, 3, 3, 5]
    assert process.conversation.users_revision == 5


def test_a_bad_snapshot_is_refused_and_the_last_good_one_stays():
    process = Process()
    process.tell(ControlMessage(USERS, 1, Users(3, ()).to_body()))
    (answer,) = process.tell(ControlMessage(USERS, 2, {"revision": 4, "users": [{}]}))
    assert answer.kind == ERROR
    assert process.conversation.users_revision == 3
    assert len(process.snapshots) == 1


def test_kinds_it_does_not_know_are_answered_so():
    (answer,) = Process(authenticates=False).tell(ControlMessage(USERS, 9, Users(1, ()).to_body()))
    assert Failure.from_body(answer.body).code == ERROR_UNKNOWN_KIND
    assert answer.id == 9


def test_a_refusal_ends_the_connection_with_its_reason():
    with pytest.raises(RefusedError, match="version: speak 9"):
        Process().tell(error(1, "version", "speak 9"))


def test_what_is_not_this_protocol_ends_the_connection():
    with pytest.raises(FramingError):
        Process().conversation.receive(b"HTTP/1.1 400 Bad Request\r\n")
    with pytest.raises(MessageError):
        Process().conversation.receive(encode_frame([VERSION + 1, COLLECT, 1, {}]))


def test_a_new_connection_starts_with_a_clean_decoder():
    process = Process()
    process.conversation.receive(encode_frame("x")[:3])
    process.conversation.connected()
    assert process.tell(ControlMessage(STATUS, 1, {}))[0].kind == REPLY


def test_waits_are_short_at_first_and_double_up_to_a_second():
    waits = [back_off(attempt) for attempt in range(1, 33)]
    assert set(waits[:25]) == {0.02}
    assert waits[25:28] == [0.04, 0.08, 0.16]
    assert waits[-1] == back_off(10_000) == BACK_OFF_MAX


def requests(sent):
    return [ControlMessage.from_wire(value) for value in FrameDecoder().feed(b"".join(sent))]


def test_requests_get_the_answer_with_their_number():
    process = Process()
    sent = process.connect()
    answers: list[Body | Failure] = []
    for text in ("a", "b", "c"):
        assert process.conversation.request("x", {"text": text}, answers.append)
    made = requests(sent)
    assert [(each.kind, each.body["text"]) for each in made] == [("x", "a"), ("x", "b"), ("x", "c")]
    assert len({each.id for each in made} - {1}) == 3
    process.tell(error(made[1].id, "invalid", "no"), ControlMessage(REPLY, made[0].id, {"n": 1}))
    assert answers == [Failure("invalid", "no"), {"n": 1}]
    # A number that nobody waits for is dropped; the connection goes on.
    process.tell(ControlMessage(REPLY, made[0].id, {}), ControlMessage(REPLY, made[2].id, {"n": 3}))
    assert answers[2:] == [{"n": 3}]


def unexpected(what):
    """Nothing is sent or answered."""
    pytest.fail(repr(what))


def test_nothing_is_asked_before_hello_is_answered():
    process = Process()
    assert not process.conversation.request("x", {}, unexpected)
    process.conversation.send = unexpected
    process.conversation.connected()
    assert not process.conversation.request("x", {}, unexpected)
    assert process.established == 0
    process.connect()
    assert process.established == 1
    process.conversation.disconnected()
    assert not process.conversation.request("x", {}, unexpected)


def test_requests_that_wait_are_bounded():
    process = Process()
    sent = process.connect()
    answers: list[Body | Failure] = []
    made = [process.conversation.request("x", {}, answers.append) for _ in range(REQUESTS_MAX + 2)]
    assert made == [True] * REQUESTS_MAX + [False, False]
    process.tell(ControlMessage(REPLY, requests(sent)[0].id, {}))
    assert process.conversation.request("x", {}, answers.append)


def test_requests_end_with_their_connection():
    process = Process()
    sent = process.connect()
    answers: list[Body | Failure] = []
    process.conversation.request("x", {}, answers.append)
    process.conversation.disconnected()
    assert [isinstance(each, Failure) and each.code for each in answers] == [ERROR_AWAY]
    # The answer of an earlier connection is not taken for one of this.
    sent += process.connect()
    process.tell(ControlMessage(REPLY, requests(sent)[0].id, {}))
    assert len(answers) == 1
    assert process.established == 2


def test_numbers_of_requests_begin_again_and_leave_out_those_in_use():
    process = Process()
    sent = process.connect()
    answers: list[Body | Failure] = []
    process.conversation.request("x", {}, answers.append)
    process.conversation._last_id = ID_MAX - 1
    for _ in range(3):
        process.conversation.request("x", {}, answers.append)
    assert [each.id for each in requests(sent)] == [2, ID_MAX, 3, 4]
