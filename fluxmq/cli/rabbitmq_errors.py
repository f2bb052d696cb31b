"""Refusals in the words and with the exit codes of RabbitMQ's programs."""

from __future__ import annotations

import argparse
from typing import Final

from fluxmq.cli.exits import EXIT_NO_ANSWER, EXIT_NOT_RUNNING, EXIT_USAGE, ExitError
from fluxmq.cli.passwords import PasswordError
from fluxmq.ipc.messages import ERROR_EXISTS, ERROR_INVALID, ERROR_NOT_FOUND
from fluxmq.ipc.polling_client import CallError

EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOUSER: Final = 67
EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70

HEADINGS: Final = {
    "add_user": 'Adding user "{user}" ...',
    "authenticate_user": 'Authenticating user "{user}" ...',
    "cancel_sync_queue": "Stopping synchronising queue '{queue}' in vhost '{vhost}' ...",
    "change_password": 'Changing password for user "{user}" ...',
    "clear_permissions": 'Clearing permissions for user "{user}" in vhost "{vhost}" ...',
    "clear_policy": 'Clearing policy "{name}" on vhost "{vhost}" ...',
    "clear_operator_policy": 'Clearing operator policy "{name}" on vhost "{vhost}" ...',
    "close_connection": "Closing connection {pid}, reason: {reason}...",
    "delete_queue": "Deleting queue '{queue}' on vhost '{vhost}' ...",
    "delete_user": 'Deleting user "{user}" ...',
    "delete_vhost": 'Deleting vhost "{name}" ...',
    "list_permissions": 'Listing permissions for vhost "{vhost}" ...',
    "list_queues": "Timeout: {timeout} seconds ...\nListing queues for vhost {vhost} ...",
    "list_exchanges": "Listing exchanges for vhost {vhost} ...",
    "list_bindings": "Listing bindings for vhost {vhost}...",
    "list_user_permissions": 'Listing permissions for user "{user}" ...',
    "purge_queue": "Purging queue '{queue}' in vhost '{vhost}' ...",
    "set_permissions": 'Setting permissions for user "{user}" in vhost "{vhost}" ...',
    "set_policy": 'Setting policy "{name}" for pattern "{pattern}" to "{definition}" with priority'
    ' "{priority}" for vhost "{vhost}" ...',
    "set_vhost_limits": 'Setting vhost limits to "{limits}" for vhost "{vhost}" ...',
    "sync_queue": "Synchronising queue '{queue}' in vhost '{vhost}' ...",
}
"""Headings of commands that may be refused: RabbitMQ's programs print them before they begin."""
_EMPTY_LISTS: Final = ("list_queues", "list_exchanges", "list_bindings")
"""Lists that are empty for a virtual host that does not exist."""
_PLAIN: Final = (
    *("check_alarms", "check_if_cluster_has_classic_queue_mirroring_policy"),
    "check_if_node_is_mirror_sync_critical",
    *("check_port_listener", "node_health_check"),
)
"""Checks whose sentence stands alone when they fail."""
_UNQUOTED: Final = ("set_permissions", "set_topic_permissions")
_QUEUE_PROBLEMS: Final = {
    "not empty": "Queue is not empty",
    "in use": "Queue is in use",
    "no queue": "Queue not found",
}


def heading(options: argparse.Namespace) -> str:
    """Return the heading of a command that was refused; empty where none is printed."""
    quiet = options.quiet or options.silent or options.formatter in ("json", "csv")
    found = HEADINGS.get(options.command)
    return "" if quiet or found is None else found.format_map(vars(options))


def worded(problem: Exception, node: str, options: argparse.Namespace) -> tuple[int, str]:
    """Return exit code and text for a command that could not be carried out; 0 for a list that is
    empty."""
    if isinstance(problem, ExitError):
        return _ended(problem, node, options)
    if isinstance(problem, CallError):
        return _refused(problem, options)
    if isinstance(problem, PasswordError) and options.password is None:
        return EX_DATAERR, "Error:\nPassword is not provided via argument or stdin"
    return EX_DATAERR, f"Error:\n{problem}"


def away(node: str, problem: str) -> str:
    """Return the text for a node that does not answer."""
    return (
        f"Error: unable to perform an operation on node '{node}'. Please see diagnostics information"
        f" and suggestions below.\n\n{problem}"
    )


def _ended(end: ExitError, node: str, options: argparse.Namespace) -> tuple[int, str]:
    text = str(end)
    if end.code in (EXIT_NOT_RUNNING, EXIT_NO_ANSWER):
        return end.rabbitmq_code or EX_UNAVAILABLE, away(node, text)
    if end.code == EXIT_USAGE:
        text = (
            f"Error (argument validation): {text}" if not end.rabbitmq_code else f"Error:\n{text}"
        )
        return end.rabbitmq_code or EX_USAGE, text
    command = options.command
    if command == "authenticate_user":
        text = f"Error: failed to authenticate user \"{options.user}\"\nuser '{options.user}' - invalid credentials"
        return EX_DATAERR, f"Error:\n{text}"
    if command == "delete_vhost" and text.startswith("no vhost"):
        return EX_DATAERR, f"Virtual host '{options.name}' does not exist"
    if command in ("clear_policy", "clear_operator_policy") and text.startswith("no policy"):
        text = "Parameter does not exist"
    if command in ("set_policy", "set_operator_policy", "set_vhost_limits"):
        text = f"Validation failed\n\n{text}\n"
    code = end.rabbitmq_code or EX_UNAVAILABLE
    return code, text if command in _PLAIN else f"Error:\n{text}"


def _refused(refusal: CallError, options: argparse.Namespace) -> tuple[int, str]:
    command, text = options.command, str(refusal)
    user = getattr(options, "user", None)
    missing = refusal.code == ERROR_NOT_FOUND
    if command == "delete_queue":
        found = next((said for word, said in _QUEUE_PROBLEMS.items() if word in text), text)
        return EX_USAGE, f"Error:\n{found}"
    if command in ("purge_queue", "sync_queue", "cancel_sync_queue") and missing:
        return EX_UNAVAILABLE, "Error:\nnot_found"
    if command == "sync_queue" and refusal.code == ERROR_INVALID:
        return EX_UNAVAILABLE, "Error:\nnot_mirrored"
    if user is not None and missing and "user" in text:
        name = user if command in _UNQUOTED else f'"{user}"'
        return EX_NOUSER, f"Error:\nUser {name} does not exist"
    if user is not None and refusal.code == ERROR_EXISTS:
        return EX_SOFTWARE, f'Error:\nUser "{user}" already exists'
    if missing and "virtual host" in text:
        if command in _EMPTY_LISTS:
            return 0, ""
        if command in _UNQUOTED:
            return EX_UNAVAILABLE, f"Error:\nVirtual host {options.vhost} does not exist"
        return EX_DATAERR, f"Virtual host '{options.vhost}' does not exist"
    return EX_UNAVAILABLE, f"Error:\n{text}"
