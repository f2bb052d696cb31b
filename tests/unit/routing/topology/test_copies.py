"""Any sequence of changes: copies stay equal, refusals leave nothing, what is found agrees with what is there."""

from __future__ import annotations

import msgpack  # type: ignore[import-untyped]
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fluxmq.routing.topology import changes
from fluxmq.routing.topology.changes import Change
from fluxmq.routing.topology.records import Binding, Exchange, Policy, QueueRecord, Vhost
from fluxmq.routing.topology.refusals import Refusal
from fluxmq.routing.topology.routing import route
from fluxmq.routing.topology.topology import Delta, Topology
from tests.unit.routing.topology.indexes import in_group, owned_by

# Few names, so that changes meet each other.
_VHOST = st.sampled_from(["/", "/", "/", "v"])
_QUEUE = st.sampled_from(["q", "r", "s"])
_EXCHANGE = st.sampled_from(["e", "f", "g", "amq.topic", "amq.fanout"])
_KEY = st.sampled_from(["", "a", "a.b", "a.#", "#", "*.b", "1"])
_OWNER = st.sampled_from(["me", "you"])
_ASKER = st.sampled_from(["me", "you", None])
_ARGUMENTS = st.sampled_from([{}, {"x-max-length": 5}, {"x-match": "any", "a": 1}])
_TYPE = st.sampled_from(["direct", "fanout", "topic", "headers", "x-consistent-hash"])
_EXCHANGES = st.builds(
    Exchange,
    _VHOST,
    _EXCHANGE,
    _TYPE,
    durable=st.booleans(),
    auto_delete=st.booleans(),
    arguments=st.sampled_from([{}, {"alternate-exchange": "g"}]),
)
_QUEUES = st.builds(
    QueueRecord, _VHOST, _QUEUE, auto_delete=st.booleans(), arguments=_ARGUMENTS, group=_OWNER
) | st.builds(
    QueueRecord,
    _VHOST,
    _QUEUE,
    exclusive=st.just(True),
    owner=_OWNER,
    group=st.sampled_from(["", "me"]),
)
_BINDINGS = st.builds(
    Binding, _VHOST, _EXCHANGE, _QUEUE, st.just("queue"), _KEY, _ARGUMENTS
) | st.builds(Binding, _VHOST, _EXCHANGE, _EXCHANGE, st.just("exchange"), _KEY)
_POLICIES = st.builds(
    Policy,
    _VHOST,
    st.sampled_from(["p", "o"]),
    st.sampled_from(["", "^e", "("]),
    definition=st.sampled_from([{"alternate-exchange": "f"}, {"max-length": 1}]),
    operator=st.booleans(),
)
_CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(changes.DeclareExchange, _EXCHANGES),
    st.builds(changes.DeleteExchange, _VHOST, _EXCHANGE, st.booleans()),
    st.builds(changes.DeclareQueue, _QUEUES),
    st.builds(changes.DeclareQueue, _QUEUES),
    st.builds(changes.DeleteQueue, _VHOST, _QUEUE, _ASKER, st.booleans()),
    st.builds(changes.Bind, _BINDINGS, _ASKER),
    st.builds(changes.Bind, _BINDINGS, st.none()),
    st.builds(changes.Bind, _BINDINGS, st.none()),
    st.builds(changes.Unbind, _BINDINGS, _ASKER),
    st.builds(changes.SetPolicy, _POLICIES),
    st.builds(changes.ClearPolicy, _VHOST, st.sampled_from(["p", "o"]), st.booleans()),
    st.builds(changes.AddVhost, st.just(Vhost("v"))),
    st.builds(changes.DeleteVhost, st.just("v")),
    st.builds(changes.SetVhostLimits, _VHOST, st.sampled_from([{}, {"max-queues": 2}])),
    st.builds(changes.DropOwner, _OWNER),
    st.builds(changes.DropGroup, _OWNER),
    st.builds(changes.QueueUnused, _VHOST, _QUEUE),
)


def rows(topology: Topology) -> dict[tuple[object, ...], str]:
    """Everything that is there, whatever its order."""
    return {(row.kind, *row.key): repr(row.row) for row in topology.snapshot().rows}


class CopiesAgainstOriginal(RuleBasedStateMachine):
    """One that decides, one that follows by deltas."""

    def __init__(self) -> None:
        super().__init__()
        self.original, self.copy = Topology(), Topology()

    @initialize()
    def begin(self) -> None:
        self.send(self.original.apply(changes.AddVhost(Vhost("/"))))

    def send(self, delta: Delta) -> None:
        """As between processes."""
        self.copy.take(Delta.unpack(msgpack.unpackb(msgpack.packb(delta.pack()))))

    @rule(wanted=st.lists(_CHANGES, min_size=1, max_size=5))
    def change(self, wanted: list[Change]) -> None:
        before, revision = rows(self.original), self.original.revision
        sent = [changes.unpack(msgpack.unpackb(msgpack.packb(changes.pack(c)))) for c in wanted]
        try:
            delta = self.original.apply_all(sent)
        except Refusal:
            assert rows(self.original) == before
            assert self.original.revision == revision
            return
        after = rows(self.original)
        touched = {(row.kind, *row.key) for row in delta.rows}
        assert {key for key in before | after if before.get(key) != after.get(key)} <= touched
        assert (delta.revision > revision) is bool(delta.rows)
        self.send(delta)

    @rule()
    def begin_again(self) -> None:
        self.copy = Topology()
        self.send(self.original.snapshot())

    @rule(exchange=_EXCHANGE, key=_KEY, vhost=_VHOST)
    def publish(self, exchange: str, key: str, vhost: str) -> None:
        fresh = Topology()
        fresh.take(self.original.snapshot())
        for headers in (None, {"a": 1}):
            routed = route(fresh, vhost, exchange, key, headers)
            assert route(self.original, vhost, exchange, key, headers) == routed
            assert route(self.copy, vhost, exchange, key, headers) == routed

    @invariant()
    def copies_are_equal(self) -> None:
        assert rows(self.copy) == rows(self.original)
        assert self.copy.revision == self.original.revision
        assert len(self.copy) == len(self.original) == len(rows(self.original))

    @invariant()
    def nothing_dangles(self) -> None:
        for vhost in self.original.vhosts():
            for binding in self.original.bindings(vhost.name):
                assert self.original.exchange(vhost.name, binding.source) is not None
                ends = self.original.bindings_to(
                    vhost.name, binding.destination_kind, binding.destination
                )
                assert binding in ends
                assert binding in self.original.bindings_from(vhost.name, binding.source)
                if binding.destination_kind == "queue":
                    assert self.original.queue(vhost.name, binding.destination) is not None
                else:
                    assert self.original.exchange(vhost.name, binding.destination) is not None

    @invariant()
    def indexes_agree(self) -> None:
        for each in (self.original, self.copy):
            for name in ("me", "you"):
                assert {q.key for q in owned_by(each, name)} == {
                    q.key for q in each.queues() if q.owner == name
                }
                assert {q.key for q in in_group(each, name)} == {
                    q.key for q in each.queues() if q.group == name
                }


TestCopiesAgainstOriginal = CopiesAgainstOriginal.TestCase
