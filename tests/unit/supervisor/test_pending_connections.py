"""Connections whose first bytes are awaited: who must go, and when."""

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.supervisor.pending_connections import PendingConnection, PendingConnections


def pending(
    fd: int, accepted_at: float = 0.0, address: str | None = "a", listener: int = 0
) -> PendingConnection:
    return PendingConnection(fd, listener, f"peer-{fd}", address, accepted_at)


def test_silent_connections_go_first_the_oldest_first() -> None:
    table = PendingConnections(capacity=3)
    connections = [pending(fd) for fd in range(3)]
    for each in connections:
        assert table.full() is None
        table.add(each)
    table.spoke(connections[0])
    assert table.full() is connections[1]
    table.remove(connections[1])
    assert table.full() is None
    table.remove(connections[2])
    assert table.oldest() is connections[0]  # nobody is silent any more


def test_one_address_pushes_out_its_own() -> None:
    table = PendingConnections(capacity=10, per_address=2)
    first, second, other = pending(1), pending(2), pending(3, address="b")
    for each in (first, second, other):
        table.add(each)
    assert table.busiest_address("a") is first
    assert table.busiest_address("b") is None
    assert table.busiest_address(None) is None
    table.remove(first)
    assert table.busiest_address("a") is None


def test_expiry_per_listener() -> None:
    table = PendingConnections(capacity=10)
    for fd, at in ((1, 1.0), (2, 2.0), (3, 3.0)):
        table.add(pending(fd, at, listener=0))
    table.add(pending(4, 1.0, listener=1))
    assert [each.fd for each in table.expired(0, 2.0)] == [1, 2]
    assert [each.fd for each in table.expired(1, 2.0)] == [4]
    assert table.expired(2, 2.0) == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "spoke", "remove"]), st.integers(0, 9), st.integers(0, 2)
        ),
        max_size=120,
    )
)
def test_against_a_plain_model(steps: list[tuple[str, int, int]]) -> None:
    table = PendingConnections(capacity=6, per_address=3)
    accepted: list[PendingConnection] = []
    spoken: list[PendingConnection] = []
    for action, number, address in steps:
        known = [each for each in accepted if each.fd == number]
        silent = [each for each in accepted if each not in spoken]
        oldest = next(iter([*silent, *spoken]), None)
        assert table.oldest() is oldest
        assert table.full() is (oldest if len(accepted) == 6 else None)
        if action == "add" and not known:
            key = f"address-{address}" if address else None
            same = [each for each in accepted if each.address == key] if key else []
            assert table.busiest_address(key) is (same[0] if len(same) >= 3 else None)
            if len(accepted) < 6:
                accepted.append(pending(number, address=key))
                table.add(accepted[-1])
        elif action == "remove" and known:
            accepted.remove(known[0])
            if known[0] in spoken:
                spoken.remove(known[0])
            table.remove(known[0])
        elif action == "spoke" and known:
            if known[0] not in spoken:
                spoken.append(known[0])
            table.spoke(known[0])
        assert len(table) == len(accepted)
        assert {each.fd for each in table} == {each.fd for each in accepted}
