"""The settings file: its schema, how it is read, and what may change while a node runs.

One YAML file, decoded strictly. ``load`` raises a ``SettingsError`` that holds every problem at
once. Packages below this one do not know that there is a file, and no setting is read from anywhere
else.
"""

from fluxmq.settings.checks import notes, refusals
from fluxmq.settings.completion import DEFAULT_CONFIG
from fluxmq.settings.load import load
from fluxmq.settings.problems import SettingsError, SettingsProblem
from fluxmq.settings.reload import changes
from fluxmq.settings.schema import Settings
from fluxmq.settings.show import effective
from fluxmq.settings.values import Secret

__all__ = [
    "DEFAULT_CONFIG",
    "Secret",
    "Settings",
    "SettingsError",
    "SettingsProblem",
    "changes",
    "effective",
    "load",
    "notes",
    "refusals",
]
