"""The settings file: its shape, how it is read, what may change while a node runs.

One YAML file, decoded strictly. ``load`` raises a ``SettingsError`` with everything that is wrong at once. Nothing below
this package knows that there is a file, and no setting is read from anywhere else.
"""

from fluxmq.settings.checks import notes, refusals
from fluxmq.settings.load import load
from fluxmq.settings.problems import Problem, SettingsError
from fluxmq.settings.reload import changes
from fluxmq.settings.schema import Settings
from fluxmq.settings.show import effective
from fluxmq.settings.values import Secret

__all__ = [
    "Problem",
    "Secret",
    "Settings",
    "SettingsError",
    "changes",
    "effective",
    "load",
    "notes",
    "refusals",
]
