"""The plans of replication groups by the settings in force: nodes join and leave while control runs."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.settings.plans import GroupPlans
from fluxmq.settings.schema import Settings


class CurrentPlans:
    """Returns the plans. ``current`` returns the settings in force."""

    def __init__(self, current: Callable[[], Settings]) -> None:
        self._current = current
        self._settings = current()
        self._plans = GroupPlans(self._settings)

    def __call__(self) -> GroupPlans:
        """Return the plans by the settings that are in force now."""
        settings = self._current()
        if settings is not self._settings:
            self._settings = settings
            self._plans.follow(settings)
        return self._plans
