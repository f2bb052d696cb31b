"""Connection rates per address."""

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.auth.bans import Ban, BanTable
from fluxmq.settings.schema import ConnectionRate
from fluxmq.supervisor.admission import AddressRates


def rates(
    rate: float = 10.0, burst: int = 3, max_addresses: int = 4, exempt: bool = False
) -> AddressRates:
    return AddressRates(
        ConnectionRate(rate=rate, burst=burst, max_addresses=max_addresses, exempt_loopback=exempt)
    )


def test_a_burst_then_the_rate() -> None:
    limit = rates()
    assert [limit.allow("192.0.2.1", 100.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert limit.allow("192.0.2.2", 100.0)  # another address is not concerned
    assert not limit.allow("192.0.2.1", 100.05)
    assert limit.allow("192.0.2.1", 100.15)
    assert [limit.allow("192.0.2.1", 200.0) for _ in range(5)] == [True] * 3 + [False] * 2


def test_loopback_is_exempt_when_said_so() -> None:
    assert all(rates(exempt=True).allow("127.0.0.1", 0.0) for _ in range(100))
    limit = rates(exempt=False)
    assert [limit.allow("127.0.0.1", 0.0) for _ in range(4)][-1] is False


def test_disabled() -> None:
    limit = AddressRates(ConnectionRate(enabled=False, burst=1))
    assert all(limit.allow("192.0.2.1", 0.0) for _ in range(10))


def test_changed_limits_apply_to_known_addresses() -> None:
    limit = rates(burst=1)
    for host in range(4):
        limit.allow(f"192.0.2.{host}", 0.0)
    limit.configure(ConnectionRate(rate=10.0, burst=1, max_addresses=2))
    assert len(limit) == 2
    assert not limit.allow("192.0.2.3", 0.0)


@given(
    arrivals=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 0.5)), max_size=200),
)
def test_the_table_is_bounded_and_no_address_exceeds_its_rate(
    arrivals: list[tuple[int, float]],
) -> None:
    limit = rates(rate=10.0, burst=3, max_addresses=20)
    now = 0.0
    started: dict[str, float] = {}
    allowed: dict[str, int] = {}
    for host, pause in arrivals:
        now += pause
        key = f"192.0.2.{host}"
        started.setdefault(key, now)
        allowed[key] = allowed.get(key, 0) + limit.allow(key, now)
        assert len(limit) <= 20
        assert allowed[key] <= 3 + (now - started[key]) * 10.0 + 1e-6


def test_the_address_quiet_for_longest_is_forgotten() -> None:
    limit = rates(burst=1, max_addresses=2)
    assert limit.allow("192.0.2.1", 0.0)
    assert limit.allow("192.0.2.2", 0.0)
    assert not limit.allow("192.0.2.1", 0.0)  # used last now
    assert limit.allow("192.0.2.3", 0.0)
    assert not limit.allow("192.0.2.1", 0.0)
    assert limit.allow("192.0.2.2", 0.0)  # forgotten, hence full again


def test_banned_addresses_are_asked_about_wherever_they_are() -> None:
    """Even where no rate is limited, and on this machine."""
    limit = AddressRates(ConnectionRate(enabled=False))
    assert not limit.counts(loopback=True)
    assert not limit.counts(loopback=False)
    limit.bans = BanTable([Ban("user", "eve")])
    assert not limit.counts(loopback=False)
    limit.bans = BanTable([Ban("address", "192.0.2.1")])
    assert limit.counts(loopback=True)
    assert limit.counts(loopback=False)
    assert limit.allow("192.0.2.2", 0.0)
