"""Problems of a settings file: each with its path, all of them at once."""

from __future__ import annotations

from dataclasses import dataclass

from fluxmq.model.errors import FluxmqError


@dataclass(frozen=True, slots=True, order=True)
class SettingsProblem:
    """One thing to correct in the file."""

    path: str
    """Path of the key, as ``server.mqtt.tcp.addr``; empty for the file as a whole."""
    message: str
    """The complaint, as the rest of a sentence that begins with the path."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SettingsError(FluxmqError):
    """The file cannot be used; ``problems`` holds everything wrong with it, in the file's order of
    sections."""

    def __init__(self, problems: list[SettingsProblem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems
