"""A process's side of the control connection, without a socket."""

import pytest

from fluxmq.control.conversation import BACK_OFF_MAX, Conversation, Handlers, RefusedError, back_off
from fluxmq.control.framing import FrameDecoder, FramingError, encode_frame
from fluxmq.control.messages import (
    COLLECT,
    ERROR,
    ERROR_UNKNOWN_KIND,
    HELLO,
    REPLY,
    STATUS,
    USERS,
    VERSION,
    Failure,
    Hello,
    Message,
    MessageError,
    ProcessNumbers,
    Report,
    error,
)
from fluxmq.control.user_messages import Confirmed, Users

ME = Hello("shard", 1, 99)
SAMPLES = (("fluxmq_ticks_total", {}, 5),)


class Process:
    """Handlers that remember."""

    def __init__(self, authenticates=True):
        self.snapshots = []
        self.conversation = Conversation(
            ME,
            Handlers(
                collect=lambda: SAMPLES,
                status=lambda: ProcessNumbers(sessions=3),
                users=self.snapshots.append if authenticates else None,
            ),
        )

    def tell(self, *messages):
        sent = b"".join(encode_frame(message.to_wire()) for message in messages)
        answers = self.conversation.receive(sent)
        return [Message.from_wire(value) for value in FrameDecoder().feed(answers)]


def test_it_says_hello_and_is_established_by_the_answer():
    process = Process()
    (hello,) = FrameDecoder().feed(process.conversation.connected())
    message = Message.from_wire(hello)
    assert message.kind == HELLO
    assert Hello.from_body(message.body) == ME
    assert not process.conversation.established
    assert process.tell(Message(REPLY, message.id, {})) == []
    assert process.conversation.established
    process.conversation.disconnected()
    assert not process.conversation.established


def test_it_answers_collect_and_status_with_the_id_asked():
    process = Process()
    report, status = process.tell(Message(COLLECT, 5, {}), Message(STATUS, 6, {}))
    assert (report.kind, report.id, status.id) == (REPLY, 5, 6)
    assert Report.from_body(report.body).samples == SAMPLES
    assert ProcessNumbers.from_body(status.body).sessions == 3


def test_snapshots_are_taken_by_revision_and_confirmed():
    process = Process()
    revisions = [3, 3, 2, 5]
    answers = [process.tell(Message(USERS, 1, Users(r, ()).to_body()))[0] for r in revisions]
    assert [users.revision for users in process.snapshots] == [3, 5]
    assert [Confirmed.from_body(answer.body).revision for answer in answers] == [3, 3, 3, 5]
    assert process.conversation.users_revision == 5


def test_a_bad_snapshot_is_refused_and_the_last_good_one_stays():
    process = Process()
    process.tell(Message(USERS, 1, Users(3, ()).to_body()))
    (answer,) = process.tell(Message(USERS, 2, {"revision": 4, "users": [{}]}))
    assert answer.kind == ERROR
    assert process.conversation.users_revision == 3
    assert len(process.snapshots) == 1


def test_kinds_it_does_not_know_are_answered_so():
    (answer,) = Process(authenticates=False).tell(Message(USERS, 9, Users(1, ()).to_body()))
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
    assert process.tell(Message(STATUS, 1, {}))[0].kind == REPLY


def test_waits_double_up_to_a_second():
    waits = [back_off(attempt) for attempt in range(1, 8)]
    assert waits[:3] == [0.05, 0.1, 0.2]
    assert waits[-1] == back_off(10_000) == BACK_OFF_MAX
