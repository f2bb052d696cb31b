"""SIGHUP: handing the live parts of a changed settings file to the running children.

Only settings that may change live are applied. The rest keeps its old value until the node is
restarted, also in children that start meanwhile: otherwise a shard restarted after a crash would
run with other tables than its neighbours.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fluxmq import logs
from fluxmq import settings as configuration
from fluxmq.settings import Settings, SettingsError
from fluxmq.settings.reload import LIVE

_log = logs.get_logger(__name__)


class SettingsReload:
    """The settings in force, and the file they come from."""

    def __init__(self, path: Path, settings: Settings) -> None:
        # Does not depend on the working directory, although it never changes.
        self._path = path.absolute()
        self.settings = settings

    def read(self) -> bytes | None:
        """Read the file again; return the settings to hand out as JSON, None to keep the old
        ones."""
        try:
            new = configuration.load(self._path, os.environ)
        except SettingsError as exc:
            for problem in exc.problems:
                _log.error("settings not reloaded: %s", problem)
            return None
        refusals = configuration.refusals(new)
        for sentence in refusals:
            _log.error("settings not reloaded: %s", sentence)
        if refusals:
            return None
        live, restart = configuration.changes(self.settings, new)
        self.settings = merge(self.settings, new)
        logs.configure(self.settings.log.level, self.settings.log.format, "supervisor")
        _log.info("settings reloaded", extra={"changed": live})
        if restart:
            _log.warning("settings that need a restart", extra={"settings": restart})
        return self.settings.model_dump_json().encode()


def merge(old: Settings, new: Settings) -> Settings:
    """Return the old settings with the live parts of the new ones."""
    merged: dict[str, Any] = old.model_dump(mode="json")
    fresh: dict[str, Any] = new.model_dump(mode="json")
    for path in LIVE:
        target, source = merged, fresh
        for key in path[:-1]:
            target, source = target[str(key)], source[str(key)]
        target[str(path[-1])] = source[str(path[-1])]
    # Via JSON, as the children do: strict decoding takes lists for tuples only there.
    return Settings.model_validate_json(json.dumps(merged))
