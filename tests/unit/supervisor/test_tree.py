"""The process tree's decisions, with time and processes played by the test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.ipc.launch import EXIT_BOOT_FAILURE
from fluxmq.supervisor import tree as deciding
from fluxmq.supervisor.tree import Child, Kill, Phase, Start, Terminate, Tree, back_off

SECOND = 1_000_000_000


class Played:
    """A tree whose processes obey at once unless told otherwise."""

    def __init__(
        self, workers: int = 2, shutdown_timeout: float = 30.0, *, etcd: bool = False
    ) -> None:
        self.tree = Tree(workers, shutdown_timeout, etcd=etcd)
        self.now = 1000.0
        self.log: list[str] = []

    def __getitem__(self, name: str) -> Child:
        return next(child for child in self.tree.children if child.name == name)

    def act(self) -> list[str]:
        """Carry out what the tree wants and return it, as ``start shard-0``."""
        done = []
        for action in self.tree.actions(self.now):
            name = action.child.name
            if isinstance(action, Start):
                self.tree.started(action.child, self.now)
                done.append(f"start {name}")
            elif isinstance(action, Terminate):
                done.append(f"terminate {name}")
            else:
                assert isinstance(action, Kill)
                done.append(f"kill {name}")
        return done

    def ready(self, *names: str) -> None:
        for name in names:
            clock = int(self.now * SECOND)
            assert self.tree.observed(self[name], True, clock, clock, self.now)

    def look(self, name: str, beat_at: float, waited: float = 0.0) -> None:
        beat, clock = int(beat_at * SECOND), int(self.now * SECOND)
        self.tree.observed(self[name], True, beat, clock, self.now, int(waited * SECOND))

    def exit(self, name: str, code: int, reason: str = "") -> None:
        self.tree.exited(self[name], code, reason, self.now)

    def up(self) -> "Played":
        self.act()
        self.ready("shard-0", "shard-1", "control")
        self.act()
        self.ready("acceptor")
        assert self.tree.complete
        return self


def test_the_member_of_etcd_starts_first_and_stops_last() -> None:
    played = Played(1, etcd=True)
    assert played.act() == ["start etcd", "start control", "start shard-0"]
    played.ready("etcd", "control", "shard-0")
    assert played.act() == ["start acceptor"]
    played.ready("acceptor")
    played.exit("etcd", -9)
    assert played.act() == ["start etcd"]
    played.tree.stop()
    for name in ("acceptor", "shard-0", "control", "etcd"):
        assert played.act() == [f"terminate {name}"]
        if name == "etcd":
            played.now += deciding.STOP_SECONDS + 1
            assert played.act() == []  # it may wait for another to take over
        played.exit(name, 0)
    assert played.tree.finished


def test_the_acceptor_starts_last() -> None:
    played = Played()
    assert played.act() == ["start control", "start shard-0", "start shard-1"]
    played.ready("shard-0", "control")
    assert played.act() == []
    played.ready("shard-1")
    assert played.act() == ["start acceptor"]
    played.ready("acceptor")
    assert played.tree.complete
    assert played.act() == []


def test_a_boot_failure_at_the_first_start_ends_the_start() -> None:
    played = Played()
    played.act()
    played.ready("shard-0")
    played.exit("shard-1", EXIT_BOOT_FAILURE, "no memory for its queues")
    assert played.tree.failure == "shard-1 could not start: no memory for its queues"
    assert played.act() == ["terminate shard-0"]
    played.exit("shard-0", 0)
    assert played.act() == ["terminate control"]
    played.exit("control", 0)
    assert played.tree.finished


def test_a_crash_at_the_first_start_does_not() -> None:
    played = Played()
    played.act()
    played.exit("shard-1", 1)
    assert played.tree.failure is None
    assert played.act() == ["start shard-1"]


def test_a_boot_failure_later_backs_off() -> None:
    played = Played().up()
    played.exit("acceptor", EXIT_BOOT_FAILURE, "the address is taken")
    assert played.tree.failure is None
    assert played.act() == []
    assert played.tree.wake_at(played.now) == pytest.approx(played.now + deciding.BACK_OFF_FIRST)
    played.now += deciding.BACK_OFF_FIRST
    assert played.act() == [
        "start acceptor"
    ]  # although a shard might be down: the order was for the start


def test_the_first_restart_is_immediate_and_the_next_wait_longer() -> None:
    played = Played().up()
    waits = []
    for _ in range(12):
        died_at = played.now
        played.exit("shard-0", -9)
        while not (done := played.act()):
            wake_at = played.tree.wake_at(played.now)
            assert wake_at is not None
            played.now = wake_at
        assert done == ["start shard-0"]
        waits.append(round(played.now - died_at, 3))
        played.ready("shard-0")
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]
    played.now += deciding.STABLE_SECONDS
    played.exit("shard-0", -9)
    assert played.act() == ["start shard-0"]
    assert played["shard-0"].starts == 14


@given(st.integers(0, 10_000))
def test_back_off_is_bounded_and_grows(failures: int) -> None:
    assert 0 <= back_off(failures) <= back_off(failures + 1) <= deciding.BACK_OFF_MAX


def test_a_hung_child_is_killed_once_and_started_again() -> None:
    played = Played().up()
    beat_at = played.now
    played.now += deciding.HEARTBEAT_SECONDS_MAX - 0.1
    played.look("shard-1", beat_at)
    assert played.act() == []
    played.now += 0.2
    played.look("shard-1", beat_at)
    assert played.act() == []  # once more, to be sure
    played.now += deciding.STALE_CONFIRM_SECONDS
    played.look("shard-1", beat_at)
    assert played.act() == ["kill shard-1"]
    assert played.act() == []
    played.exit("shard-1", -9)
    assert played.act() == ["start shard-1"]
    played.ready("shard-1")
    played.look("shard-1", played.now)
    assert played.act() == []


def test_heartbeats_are_looked_at_when_they_could_be_old() -> None:
    """While all beat, the supervisor wakes every other second; while one is late, several times a second."""
    played = Played().up()
    for _ in range(20):
        wake_at = played.tree.wake_at(played.now)
        assert wake_at is not None
        assert wake_at >= played.now + 1.0
        played.now = wake_at
        for child in played.tree.children:
            played.look(child.name, played.now - 0.9)
        assert played.act() == []
    silent_since = played.now - 0.9
    killed: list[str] = []
    while not killed:
        wake_at = played.tree.wake_at(played.now)
        assert wake_at is not None
        played.now = wake_at
        for child in played.tree.children:
            beat_at = silent_since if child.name == "shard-0" else played.now
            played.look(child.name, beat_at)
        killed = played.act()
    assert killed == ["kill shard-0"]
    certain = deciding.HEARTBEAT_SECONDS_MAX + deciding.STALE_CONFIRM_SECONDS
    assert certain <= played.now - silent_since <= certain + 0.6


def test_what_became_due_a_moment_ago_is_not_slept_over() -> None:
    """Between the decisions and the sleep time passes: a first restart, due at once, and the end of a stop."""
    played = Played()
    played.act()
    for child in list(played.tree.children):
        if child.alive:
            played.exit(child.name, -1, "no memory")
    due = played.now
    played.now += 0.001
    assert played.tree.wake_at(played.now) == due
    played.act()
    played.tree.stop()
    assert "terminate shard-0" in played.act()
    killed_at = played["shard-0"].kill_at
    assert killed_at is not None
    played.now = killed_at + 0.001
    assert played.tree.wake_at(played.now) == killed_at
    assert "kill shard-0" in played.act()
    assert played.tree.wake_at(played.now) is None, "its end will be told"


def test_a_child_that_gets_no_processor_is_left_alone_for_longer() -> None:
    played = Played().up()
    beat_at = played.now
    killed_at = None
    while killed_at is None:
        played.now += deciding.STALE_CONFIRM_SECONDS
        age = played.now - beat_at
        played.look("shard-0", beat_at, waited=0.9 * age)
        if played.act() == ["kill shard-0"]:
            killed_at = age
    longest = min(10 * deciding.HEARTBEAT_SECONDS_MAX, deciding.STARVED_SECONDS_MAX)
    assert longest <= killed_at <= longest + 3 * deciding.STALE_CONFIRM_SECONDS


def test_a_child_without_a_processor_is_given_up_in_the_end() -> None:
    played = Played().up()
    beat_at = played.now
    played.now += deciding.STARVED_SECONDS_MAX - 0.1
    played.look("shard-0", beat_at, waited=deciding.STARVED_SECONDS_MAX)
    assert played.act() == []
    played.now += 0.2
    played.look("shard-0", beat_at, waited=deciding.STARVED_SECONDS_MAX + 1.0)
    played.now += deciding.STALE_CONFIRM_SECONDS
    played.look("shard-0", beat_at, waited=deciding.STARVED_SECONDS_MAX + 2.0)
    assert played.act() == ["kill shard-0"]


def test_a_pause_of_the_machine_kills_nobody() -> None:
    played = Played().up()
    beat_at = played.now
    played.now += 3600.0
    for name in ("shard-0", "shard-1", "acceptor", "control"):
        played.look(name, beat_at)
    assert played.act() == []
    played.now += 0.02
    for name in ("shard-0", "shard-1", "acceptor", "control"):
        played.look(name, played.now)
    played.now += deciding.STALE_CONFIRM_SECONDS
    assert played.act() == []


def test_a_child_that_does_not_become_ready_is_killed() -> None:
    played = Played().up()
    played.exit("control", 1)
    played.act()
    played.now += deciding.START_SECONDS_MAX - 0.1
    assert played.act() == []
    played.now += 0.2
    assert played.act() == ["kill control"]


def test_stop_order() -> None:
    played = Played().up()
    played.tree.stop()
    assert played.act() == ["terminate acceptor"]
    assert played.act() == []
    played.exit("acceptor", 0)
    assert played.act() == ["terminate shard-0", "terminate shard-1"]
    played.exit("shard-1", 0)
    assert played.act() == []
    played.exit("shard-0", 0)
    assert played.act() == ["terminate control"]
    assert not played.tree.finished
    played.exit("control", 0)
    assert played.tree.finished
    assert not played.tree.killed_in_stop


def test_who_does_not_stop_in_time_is_killed() -> None:
    played = Played(shutdown_timeout=20.0).up()
    played.tree.stop()
    played.act()
    played.now += deciding.STOP_SECONDS + 0.1
    assert played.act() == ["kill acceptor"]
    played.exit("acceptor", -9)
    played.act()
    played.exit("shard-0", 0)
    played.now += 20.0
    assert played.act() == []
    assert played.tree.wake_at(played.now) is not None
    played.now += deciding.STOP_SECONDS + 0.1
    assert played.act() == ["kill shard-1"]
    played.exit("shard-1", -9)
    assert played.act() == ["terminate control"]
    assert played.tree.killed_in_stop


def test_a_second_signal_kills_what_is_left() -> None:
    played = Played().up()
    played.tree.stop()
    played.act()
    played.exit("acceptor", 0)
    played.act()
    played.tree.kill()
    assert played.act() == ["kill shard-0", "kill shard-1", "kill control"]
    for name in ("shard-0", "shard-1", "control"):
        played.exit(name, -9)
    assert played.tree.finished


def test_nothing_is_started_while_stopping() -> None:
    played = Played().up()
    played.exit("shard-0", -9)
    played.tree.stop()
    assert played.act() == ["terminate acceptor"]
    played.exit("acceptor", -9)
    assert played.act() == ["terminate shard-1"]
    assert played["shard-0"].phase is Phase.STOPPED


@given(st.data())
def test_any_course_of_events_keeps_every_child_up_or_brings_all_down(data: st.DataObject) -> None:
    played = Played()
    names = ["shard-0", "shard-1", "acceptor", "control"]
    for _ in range(data.draw(st.integers(0, 40))):
        event = data.draw(st.sampled_from(["act", "ready", "exit", "time", "look"]))
        name = data.draw(st.sampled_from(names))
        child = played[name]
        if event == "act":
            played.act()
        elif event == "ready" and child.phase is Phase.STARTING:
            played.ready(name)
        elif event == "exit" and child.alive:
            played.exit(name, data.draw(st.sampled_from([0, 1, EXIT_BOOT_FAILURE, -9])))
        elif event == "time":
            played.now += data.draw(st.floats(0, 20))
        elif event == "look" and child.alive:
            played.look(name, played.now)
    if data.draw(st.booleans()):
        played.tree.stop()
    for _ in range(100):  # from now on everybody behaves
        for child in played.tree.children:
            if child.phase is Phase.STARTING and not child.killed:
                played.ready(child.name)
        for action in played.act():
            verb, name = action.split()
            if verb != "start" and played[name].alive:
                played.exit(name, 0)
        for child in played.tree.children:
            if child.killed and child.alive:
                played.exit(child.name, -9)
        played.now += 0.5
        for child in played.tree.children:
            if child.phase is Phase.READY:
                played.look(child.name, played.now)
    if played.tree.stopping:
        assert played.tree.finished
        assert all(child.phase is Phase.STOPPED for child in played.tree.children)
    else:
        assert all(child.phase is Phase.READY for child in played.tree.children)
        assert played.tree.complete
