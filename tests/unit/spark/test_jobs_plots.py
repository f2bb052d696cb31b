"""The jobs' pictures: there, of the size promised, and with what was asked to be in them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fluxmq_spark.jobs import plots
from fluxmq_spark.jobs.sizes import sizes_of

START = 1_790_000_000_000_000


def picture(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def test_pictures(tmp_path: Path) -> None:
    """Rates with holes, sizes of queues of one message, groups without lag, and names with formulas in them."""
    series = {
        f"$dlq/queue_{number}^2" + "x" * 40 * (number == 0): {
            START + at * 1_000_000: at * 10.0 + number for at in (0, 1, 7)
        }
        for number in range(12)
    }
    plots.rates(tmp_path / "rate.png", series, 1)
    plots.rates(tmp_path / "one.png", {"q": {START: 1.0}}, 3600)
    found = [
        sizes_of("$a$", [(3, 1, 3, 3)]),
        sizes_of("b", [(0, 5, 0, 0), (500, 10, 20_000, 2100)]),
    ]
    plots.sizes(tmp_path / "sizes.png", found)
    plots.lag(tmp_path / "lag.png", [("orders: billing", 0, 0.0), ("$q: g", 12_000_000, 86_400.5)])
    plots.deaths(tmp_path / "deaths.png", [("rejected: orders", 3), ("expired: $x", 1)])
    made = sorted(tmp_path.iterdir())
    assert len(made) == 5
    assert {picture(each) for each in made} == {(1200, 700)}


def test_the_rest_is_one_line() -> None:
    """Of many queues the busiest have a line each, and nothing of the others is left out of the sum."""
    series = {f"q{number}": {0: float(number), 1: 1.0} for number in range(20)}
    shown = plots.busiest(series)
    assert list(shown)[:2] == ["q19", "q18"]
    assert list(shown)[-1] == "12 others"
    total = sum(sum(values.values()) for values in series.values())
    assert sum(sum(values.values()) for values in shown.values()) == pytest.approx(total)
