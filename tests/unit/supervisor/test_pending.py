"""Connections whose first bytes are awaited: who must go, and when."""

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.supervisor.pending import Pending, PendingConnections


def pending(
    fd: int, accepted_at: float = 0.0, address: str | None = "a", listener: int = 0
) -> Pending:
    return Pending(fd, listener, f"peer-{fd}", address, accepted_at)


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
    assert table.crowded("a") is first
    assert table.crowded("b") is None
    assert table.crowded(None) is None
    table.remove(first)
    assert table.crowded("a") is None


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
    model: list[tuple[Pending, bool]] = []
    for action, number, address in steps:
        if action == "add":
            if table.get(number) is not None:
                continue
            key = f"address-{address}" if address else None
            same = [each for each, _ in model if each.address == key] if key else []
            assert table.crowded(key) is (same[0] if len(same) >= 3 else None)
            silent = [each for each, spoken in model if not spoken]
            spoken_first = [each for each, spoken in model if spoken]
            oldest = (silent + spoken_first)[0] if model else None
            if oldest in silent or not model:
                assert table.oldest() is oldest
            assert (table.full() is None) == (len(model) < 6)
            if len(model) < 6:
                new = pending(number, address=key)
                table.add(new)
                model.append((new, False))
        else:
            known = [entry for entry in model if entry[0].fd == number]
            if not known:
                continue
            model.remove(known[0])
            if action == "remove":
                table.remove(known[0][0])
            else:
                table.spoke(known[0][0])
                model.append((known[0][0], True))
                model.sort(key=lambda entry: entry[1])  # stable: the silent keep their order
        assert len(table) == len(model)
        assert {each.fd for each in table} == {each.fd for each, _ in model}
