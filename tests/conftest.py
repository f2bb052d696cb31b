"""What every test run shares: the line that says which hot path is being tested, and Hypothesis's profile."""

import os

from hypothesis import HealthCheck, settings

import fluxmq._hot

# A shared machine is slow at times, which says nothing of the property. Examples are drawn anew each time; a failing
# one is printed as a blob that reproduces it.
settings.register_profile(
    "fluxmq",
    deadline=None,
    max_examples=int(os.environ.get("FLUXMQ_EXAMPLES", "100")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fluxmq")


def pytest_report_header() -> str:
    """Say in pytest's header whether this run tests the compiled or the uncompiled hot path."""
    return f"hot path: {'compiled' if fluxmq._hot.COMPILED else 'uncompiled'}"
