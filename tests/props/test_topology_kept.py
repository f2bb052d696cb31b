"""Whatever is changed: a control process that begins anew has all of it, a new node what is durable."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.admin.metadata import FILE_NAME, MetadataStore, StoreThread
from fluxmq.admin.topology_keeper import TopologyKeeper
from fluxmq.auth.credentials import HashParameters, hash_password
from fluxmq.auth.users import User
from fluxmq.routing.topology.changes import (
    AddVhost,
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    DropGroup,
    DropOwner,
    QueueUnused,
    SetPolicy,
    SetVhostLimits,
    Unbind,
)
from fluxmq.routing.topology.records import Binding, Exchange, Policy, Queue, Vhost

HASH = hash_password("p", b"s" * 16, HashParameters(1, 64, 1))
vhosts = st.sampled_from(["/", "b"])
names = st.sampled_from(["x", "y", "z"])
owners = st.sampled_from(["0.1.1", "0.1.2"])
groups = st.sampled_from(["ephemeral-0", "local-1"])
bindings = st.builds(
    Binding,
    vhosts,
    names,
    names,
    st.sampled_from(["queue", "exchange"]),
    st.sampled_from(["", "a.#"]),
    st.sampled_from([{}, {"k": b"\xff"}, {"k": [1, None]}]),
)
queues = st.builds(Queue, vhosts, names, durable=st.booleans(), group=groups) | st.builds(
    Queue,
    vhosts,
    names,
    durable=st.booleans(),
    exclusive=st.just(True),
    auto_delete=st.booleans(),
    owner=owners,
    group=groups,
)
changes = st.one_of(
    st.builds(AddVhost, st.builds(Vhost, vhosts)),
    st.builds(DeleteVhost, vhosts),
    st.builds(SetVhostLimits, vhosts, st.sampled_from([{}, {"max-queues": 2}])),
    st.builds(
        DeclareExchange,
        st.builds(
            Exchange,
            vhosts,
            names,
            st.sampled_from(["topic", "fanout"]),
            st.booleans(),
            st.booleans(),
        ),
    ),
    st.builds(DeleteExchange, vhosts, names, st.booleans()),
    st.builds(DeclareQueue, queues),
    st.builds(DeleteQueue, vhosts, names, by_broker=st.booleans()),
    st.builds(Bind, bindings),
    st.builds(Unbind, bindings),
    st.builds(
        SetPolicy,
        st.builds(
            Policy,
            vhosts,
            names,
            st.just(".*"),
            definition=st.just({"max-length": 1}),
            operator=st.booleans(),
        ),
    ),
    st.builds(ClearPolicy, vhosts, names, st.booleans()),
    st.builds(DropOwner, owners),
    st.builds(DropGroup, groups),
    st.builds(QueueUnused, vhosts, names),
)
sets = st.lists(st.lists(changes, min_size=1, max_size=3).map(tuple), max_size=12)


async def kept(path, node, thread, some):
    """Begin, make changes, end; return the topology at the beginning and at the end."""
    store = await thread.run(lambda: MetadataStore(path))
    keeper = TopologyKeeper(store, thread, list, list, lambda _users: None)
    await keeper.load(node, [], lambda: User("guest", HASH, None, (), (), enabled=True))
    begun = keeper.topology.snapshot()
    await asyncio.gather(*(keeper.change([each]) for each in some))
    await thread.run(store.close)
    return begun, keeper.topology


def rows(delta):
    return {(row.kind, row.key): row.row for row in delta.rows}


@given(sets, sets)
def test_what_is_changed_is_kept(first, second):
    async def scenario(path):
        thread = StoreThread()
        _, ended = await kept(path, "one", thread, first)
        begun, again = await kept(path, "one", thread, second)
        assert (begun.revision, rows(begun)) == (ended.revision, rows(ended.snapshot()))
        fresh, _ = await kept(path, "two", thread, [])
        durable = {
            (row.kind, row.key): row.row
            for row in again.snapshot().rows
            if again.is_durable(row.kind, row.key)
        }
        assert rows(fresh) == durable
        assert fresh.revision == again.revision
        thread.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder) / FILE_NAME))
