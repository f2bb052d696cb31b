"""Messages of the control protocol: there and back, and every ill-formed field refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.ipc.messages import (
    ERROR,
    ERROR_VERSION,
    HELLO,
    PROCESSES_MAX,
    REPLY,
    SAMPLES_MAX,
    VERSION,
    ControlMessage,
    Failure,
    MessageError,
    NodeStatus,
    ProcessHello,
    ProcessNumbers,
    ProcessStatus,
    Report,
    Resources,
    VersionMismatchError,
    error,
    reply,
)
from tests.unit.ipc.travelling import travelled

PROCESS = ProcessStatus(
    role="shard",
    index=1,
    pid=42,
    core=-1,
    state="ready",
    ready=True,
    uptime=1.5,
    restarts=2,
    last_exit=-9,
    reason="",
    heartbeat_age=0.1,
    connections=(1, 2, 3, 0, 0, 0, 0, 0),
    numbers=ProcessNumbers(connections=6, sessions=7, messages_sent=2**40),
)
NEVER_STARTED = ProcessStatus(
    role="acceptor",
    index=0,
    pid=0,
    core=3,
    state="backing_off",
    ready=False,
    uptime=0.0,
    restarts=0,
    last_exit=None,
    reason="address in use",
    heartbeat_age=None,
    connections=(0,) * 8,
    numbers=None,
)


@pytest.mark.parametrize(
    "value",
    [
        ProcessHello("shard", 3, 4242),
        Failure("limit", "too many"),
        Report((("fluxmq_ticks_total", {}, 3), ("fluxmq_connections", {"listener": "x"}, 1.5))),
        Report(()),
        ProcessNumbers(1, 2, 3, 4, 5, 6, 7),
        PROCESS,
        NEVER_STARTED,
        NodeStatus("0.1.0", 9, (PROCESS, NEVER_STARTED)),
        NodeStatus("0.1.0", 9, (), Resources(("memory", "disk"), 3, 2, 1)),
    ],
)
def test_there_and_back(value):
    assert type(value).from_body(travelled(value.to_body())) == value


def test_an_envelope_there_and_back():
    message = ControlMessage(HELLO, 7, {"role": "shard"})
    assert ControlMessage.from_wire([VERSION, HELLO, 7, {"role": "shard"}]) == message
    assert message.to_wire() == [VERSION, HELLO, 7, {"role": "shard"}]
    assert reply(message, {"a": 1}) == ControlMessage(REPLY, 7, {"a": 1})
    refusal = error(7, "limit", "no")
    assert (refusal.kind, refusal.id) == (ERROR, 7)
    assert Failure.from_body(refusal.body) == Failure("limit", "no")


def test_another_version_is_told_apart_and_names_the_request():
    with pytest.raises(VersionMismatchError, match="version 2 is not 1") as caught:
        ControlMessage.from_wire([VERSION + 1, "anything", 5, "even this"])
    assert caught.value.id == 5
    assert caught.value.code == ERROR_VERSION


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        [],
        [1, "x", 1],
        [1, "x", 1, {}, 0],
        [1, "x", -1, {}],
        [1, "x", 2**32, {}],
        [1, "x", True, {}],
        [1, "x", "1", {}],
        [1, "", 1, {}],
        [1, "x" * 33, 1, {}],
        [1, 5, 1, {}],
        [1, "x", 1, []],
        [True, "x", 1, {}],
        ["1", "x", 1, {}],
    ],
)
def test_values_that_are_no_message_are_refused(value):
    with pytest.raises(MessageError):
        ControlMessage.from_wire(value)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"role": "shard", "index": 0},
        {"role": "king", "index": 0, "pid": 1},
        {"role": "shard", "index": -1, "pid": 1},
        {"role": "shard", "index": PROCESSES_MAX + 1, "pid": 1},
        {"role": "shard", "index": 0, "pid": 0},
        {"role": "shard", "index": True, "pid": 1},
        {"role": b"shard", "index": 0, "pid": 1},
    ],
)
def test_a_hello_that_is_none(body):
    with pytest.raises(MessageError, match="Hello"):
        ProcessHello.from_body(body)


@pytest.mark.parametrize(
    "samples",
    [
        "x",
        [1],
        [["a", {}]],
        [["a", {}, "1"]],
        [["a", {}, True]],
        [[1, {}, 1]],
        [["a", [], 1]],
        [["a", {"l": 1}, 1]],
        [["a", {str(n): "" for n in range(9)}, 1]],
        [["a", {}, 1]] * (SAMPLES_MAX + 1),
    ],
)
def test_a_report_that_is_none(samples):
    with pytest.raises(MessageError, match=r"Report\.samples"):
        Report.from_body({"samples": samples})


@pytest.mark.parametrize("name", [name for name in PROCESS.to_body() if name != "numbers"])
def test_each_field_of_a_process_is_checked(name):
    with pytest.raises(MessageError, match=rf"ProcessStatus\.{name}\b"):
        ProcessStatus.from_body({**PROCESS.to_body(), name: {}})


def test_what_is_optional_may_be_absent():
    body = PROCESS.to_body()
    for name in ("heartbeat_age", "last_exit", "numbers"):
        del body[name]
    process = ProcessStatus.from_body(body)
    assert (process.heartbeat_age, process.last_exit, process.numbers) == (None, None, None)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(PROCESS.to_body())), junk))
def test_any_body_ends_in_a_value_or_in_a_message_error(body):
    for parse in (
        ProcessStatus.from_body,
        NodeStatus.from_body,
        Report.from_body,
        ProcessHello.from_body,
    ):
        with pytest.raises(MessageError):
            parse(body)
