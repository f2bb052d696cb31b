"""Rates of a connection's bytes between two looks at it."""

from __future__ import annotations

import pytest

from fluxmq.control.management import octet_rates
from fluxmq.control.management.list_query import JsonRow
from fluxmq.control.management.octet_rates import OctetRates


class Looks:
    """Looks at one connection, on the test's clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rates = OctetRates(lambda: self.now)

    def look(self, received: int, sent: int, **more: object) -> tuple[float, float]:
        """Return the rates of bytes received and sent."""
        row: JsonRow = {"node": "a", "name": "c", "recv_oct": received, "send_oct": sent, **more}
        self.rates.add_to([row])
        return row["recv_oct_details"]["rate"], row["send_oct_details"]["rate"]


def test_a_rate_is_that_since_an_earlier_look() -> None:
    looks = Looks()
    assert looks.look(1000, 5000) == (0.0, 0.0), "nothing is known of the time before"
    looks.now += 1
    assert looks.look(1100, 5000) == (100.0, 0.0)
    looks.now += 4
    assert looks.look(1500, 5500) == (100.0, 100.0)
    looks.now += 1
    assert looks.look(1500, 5500) == (83.3, 83.3), (
        "of the last two looks that are five seconds apart"
    )
    looks.now += 4
    assert looks.look(1500, 5500) == (0.0, 0.0)


def test_another_connection_of_the_same_name_begins_anew() -> None:
    looks = Looks()
    looks.look(1000, 5000, connected_at=1)
    looks.now += 5
    assert looks.look(10, 10, connected_at=2) == (0.0, 0.0)


def test_connections_without_figures_have_no_rates() -> None:
    row: JsonRow = {"node": "a", "name": "c", "recv_oct": None}
    OctetRates().add_to([row])
    assert set(row) == {"node", "name", "recv_oct"}


def test_remembered_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(octet_rates, "CONNECTIONS_MAX", 2)
    looks = Looks()
    for name in ("one", "two", "three"):
        looks.look(0, 0, name=name)
    looks.now += 5
    assert looks.look(100, 0, name="three") == (20.0, 0.0)
    assert looks.look(100, 0, name="one") == (0.0, 0.0), "forgotten"
