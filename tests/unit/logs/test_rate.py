"""Rate-limited lines: every event counted, lines bounded, gaps reported."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.logs import RateLimited, flush_all


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def limited(per_second=1.0, burst=2, **keywords):
    logger = logging.getLogger("fluxmq.test.rate")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    lines = Lines()
    logger.handlers[:] = [lines]
    return RateLimited(logger, per_second, burst, **keywords), lines.records


def test_a_burst_passes_then_the_rate_holds_and_the_gap_is_told():
    limit, records = limited()
    written = [limit.event(logging.INFO, "k", "x %d", n, now=0.0) for n in range(5)]
    assert written == [True, True, False, False, False]
    assert limit.event(logging.INFO, "k", "x", now=1.0, client="c")
    assert records[-1].suppressed == 3
    assert records[-1].client == "c"
    assert (limit.events, limit.suppressed_total) == (6, 3)


def test_keys_are_independent():
    limit, records = limited(burst=1)
    assert limit.event(logging.INFO, "a", "x", now=0.0)
    assert limit.event(logging.INFO, "b", "x", now=0.0)
    assert not limit.event(logging.INFO, "a", "x", now=0.0)
    assert len(records) == 2


def test_flush_reports_what_nothing_followed():
    limit, records = limited()
    for _ in range(10):
        limit.event(logging.WARNING, "k", "bad packet", now=0.0)
    assert limit.flush(now=0.0) == 0
    assert limit.flush(now=5.0) == 1
    assert limit.flush(now=9.0) == 0
    assert records[-1].suppressed == 8
    assert records[-1].like == "bad packet"
    assert records[-1].levelno == logging.WARNING


def test_all_limited_loggers_of_the_process_are_flushed_together():
    times = [0.0]
    limit, _ = limited(burst=1, clock=lambda: times[0])
    other, records = limited(burst=1, clock=lambda: times[0])
    for made in (limit, other):
        made.event(logging.INFO, "k", "x")
        made.event(logging.INFO, "k", "x")
    times[0] = 10.0
    assert flush_all() >= 2
    assert limit.flush() == other.flush() == 0
    # Both write to one logger: a line each at first, then one that tells of the suppressed.
    assert [getattr(record, "suppressed", 0) for record in records] == [0, 0, 1, 1]


def test_the_table_of_keys_is_bounded_and_the_rest_share_one_bucket():
    limit, records = limited(burst=1, keys_max=3)
    for number in range(100):
        limit.event(logging.INFO, f"key {number}", "x", now=0.0)
    assert len(records) == 4
    assert limit.flush(now=0.0) == 0
    # Rested keys make room, the shared bucket reports what it held back.
    assert limit.event(logging.INFO, "fresh", "x", now=10.0)
    assert limit.flush(now=20.0) == 1
    assert records[-1].suppressed == 96


def test_fields_that_logging_keeps_for_itself_are_renamed():
    limit, records = limited()
    limit.event(logging.INFO, "k", "x", now=0.0, name="n", process="p")
    assert (records[0].name_, records[0].process_) == ("n", "p")


def test_the_injected_clock_is_used():
    times = iter([0.0, 0.0, 0.0, 100.0])
    limit, records = limited(burst=1, clock=lambda: next(times))
    assert [limit.event(logging.INFO, "k", "x") for _ in range(4)] == [True, False, False, True]
    assert len(records) == 2


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (1, 0), (-1, 1)])
def test_limits_must_be_positive(per_second, burst):
    with pytest.raises(ValueError, match="positive"):
        RateLimited(logging.getLogger("x"), per_second, burst)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3)), max_size=60))
def test_lines_never_exceed_the_bound_and_every_event_is_counted(events):
    limit, records = limited(per_second=2.0, burst=3, keys_max=2)
    now = 0.0
    for key, step in events:
        now += step
        limit.event(logging.INFO, str(key), "x", now=now)
    assert limit.events == len(events) == len(records) + limit.suppressed_total
    # Two keys and the shared bucket; a forgotten key was full, so it gave up nothing it could use.
    assert len(records) <= 3 * (3 + 2.0 * now) + 6
