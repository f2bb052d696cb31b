"""The node a fluxmqctl command addresses: its control process, here or on another machine, or its
database while no broker runs.

Messages about users are imported where they are used, because most commands need none of them.
Commands raise `ExitError` to end the program with a code; warnings besides their result go to
`TargetNode.complaints`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluxmq.cli import data_directory
from fluxmq.cli.callers import BrokerCaller
from fluxmq.cli.exits import EXIT_NO_ANSWER, EXIT_NOT_RUNNING, EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.ipc.messages import (
    ERROR_NOT_FOUND,
    HASHING,
    USER_ADD,
    USER_LIST,
    Body,
    ControlMessage,
)
from fluxmq.ipc.polling_client import CallError, ControlCaller

if TYPE_CHECKING:
    from fluxmq.auth.credentials import HashParameters
    from fluxmq.cli.remote import RemoteNode
    from fluxmq.ipc.permission_messages import UserHash
    from fluxmq.ipc.user_messages import UserChanged, UserSummary
    from fluxmq.settings import Settings

DATA_DIR_DEFAULT: Final = Path("./data")
NODE_VARIABLE: Final = "FLUXMQ_NODE"
CONFIG_VARIABLE: Final = "FLUXMQ_CONFIG"
DATA_DIR_VARIABLE: Final = "FLUXMQ__STORAGE__DATA_DIR"
"""The setting `storage.data_dir` in the environment."""


class TargetNode:
    """The node a command addresses: its data directory, and its control process if one answers.

    With ``--node``, or FLUXMQ_NODE in the environment, the node is on another machine.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._remote = _remote(options)
        self.settings = _settings(options.config or _default_config(options))
        """Settings of the file named on the command line, if any."""
        if options.data_dir is not None:
            self.data_dir = Path(options.data_dir)
        elif self.settings is not None:
            self.data_dir = Path(self.settings.storage.data_dir)
        else:
            self.data_dir = Path(os.environ.get(DATA_DIR_VARIABLE, DATA_DIR_DEFAULT))
        self._timeout: float = options.timeout
        self.complaints: list[str] = []
        """Warnings to print on standard error when the command is done."""

    def wait_at_least(self, seconds: float) -> None:
        """Give the broker at least this long to answer, or longer when the user asked for it."""
        self._timeout = max(self._timeout, seconds)

    @property
    def host(self) -> str | None:
        """Host name of a node on another machine, None for one on this."""
        return None if self._remote is None else self._remote.host

    def require_here(self, command: str) -> None:
        """Exit when the node is on another machine: the command works on the node's own files."""
        if self._remote is not None:
            raise ExitError(
                EXIT_USAGE, f"{command} works on the node's own files: run it on that machine"
            )

    def connect(self) -> BrokerCaller | None:
        """Return a connection to the control process, None when no broker runs here.

        Exits when a broker runs but is unreachable.
        """
        if self._remote is not None:
            from fluxmq.cli.remote import RemoteCaller

            return RemoteCaller(self._remote, self._timeout)
        path = data_directory.control_socket(self.data_dir)
        try:
            return ControlCaller(path, self._timeout)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            if data_directory.is_locked(self.data_dir):
                raise ExitError(
                    EXIT_NO_ANSWER,
                    f"the broker on {self.data_dir} is starting, stopping or restarting its"
                    " control process; try again in a moment",
                ) from None
            return None
        except OSError as problem:
            raise ExitError(EXIT_NO_ANSWER, f"{path}: {problem.strerror or problem}") from None

    def require(self) -> BrokerCaller:
        """Return a connection to the control process. Exits when no broker runs here."""
        caller = self.connect()
        if caller is None:
            raise ExitError(EXIT_NOT_RUNNING, f"no broker is running on {self.data_dir}")
        return caller

    def hash_parameters(self) -> HashParameters:
        """Return the node's hash parameters: the running broker's, else those of the settings."""
        from fluxmq.auth.credentials import HashParameters
        from fluxmq.control.password_hashes import parameters_of
        from fluxmq.ipc.user_messages import Hashing

        caller = self.connect()
        if caller is not None:
            with caller:
                return Hashing.from_body(caller.call(HASHING, {})).parameters
        return HashParameters() if self.settings is None else parameters_of(self.settings)

    def change(self, kind: str, body: Body) -> None:
        """Change users through the broker or directly; warn of shards that did not confirm in
        time."""
        self.complain_of(self._changed(kind, body).unconfirmed)

    def complain_of(self, unconfirmed: tuple[str, ...]) -> None:
        """Warn that a change has not reached these processes yet."""
        if unconfirmed:
            self.complaints.append(
                f"not confirmed in time by {', '.join(unconfirmed)}; takes effect there as soon"
                " as the process answers again"
            )

    def _changed(self, kind: str, body: Body) -> UserChanged:
        from fluxmq.ipc.user_messages import UserChanged

        caller = self.connect()
        if caller is not None:
            with caller:
                return UserChanged.from_body(caller.call(kind, body))
        if kind == USER_ADD:
            # The first user is often created before the first start.
            self.data_dir.mkdir(mode=0o700, exist_ok=True)
        from fluxmq.control.directory import change_of  # no other command needs it

        change = change_of(ControlMessage(kind, 1, body))
        with data_directory.opened_store(self.data_dir) as store:
            return UserChanged(change(store).revision, ())

    def password_hash(self, name: str) -> UserHash | None:
        """Return a user's password hash, None when there is no such user."""
        from fluxmq.ipc.permission_messages import USER_HASH, UserHash

        caller = self.connect()
        if caller is None:
            with data_directory.opened_store(self.data_dir) as store:
                found = (each for each in store.users().users if each.name == name)
                return next((UserHash(each.hash, each.enabled) for each in found), None)
        with caller:
            try:
                return UserHash.from_body(caller.call(USER_HASH, {"name": name}))
            except CallError as refusal:
                if refusal.code != ERROR_NOT_FOUND:
                    raise
                return None

    def users(self) -> tuple[UserSummary, ...]:
        """Return all users."""
        from fluxmq.ipc.user_messages import UserListing, UserSummary

        caller = self.connect()
        if caller is not None:
            with caller:
                return UserListing.from_body(caller.call(USER_LIST, {})).users
        if not self.data_dir.is_dir():
            raise ExitError(EXIT_REFUSED, f"there is no data directory {self.data_dir}")
        with data_directory.opened_store(self.data_dir) as store:
            return tuple(UserSummary.of(user) for user in store.users().users)


def _remote(options: argparse.Namespace) -> RemoteNode | None:
    """Return the node on another machine that the command line or the environment names."""
    here = options.config is not None or options.data_dir is not None
    url = options.url or (None if here else os.environ.get(NODE_VARIABLE))
    if not url:
        joining = options.command == "join"  # the login is for the cluster
        if not joining and (options.login is not None or options.ca_file is not None):
            raise ExitError(EXIT_USAGE, "--user and --ca-file go with --node URL")
        return None
    # TLS and HTTP are not loaded for commands on the node itself.
    from fluxmq.cli.remote import RemoteNode

    return RemoteNode(url, options)


def _default_config(options: argparse.Namespace) -> str | None:
    """Return the settings file that the environment names, unless the command line names the node."""
    if options.data_dir is not None or options.url or DATA_DIR_VARIABLE in os.environ:
        return None
    return os.environ.get(CONFIG_VARIABLE) or None


def _settings(config: str | None) -> Settings | None:
    if config is None:
        return None
    # Takes longer than all the rest of a command.
    from fluxmq.settings import SettingsError, load

    try:
        return load(Path(config), os.environ)
    except SettingsError as error:
        problems = "\n".join(f"  {problem}" for problem in error.problems)
        raise ExitError(EXIT_USAGE, f"{config} has problems:\n{problems}") from None
