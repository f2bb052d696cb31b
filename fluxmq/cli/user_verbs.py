"""Verbs about users and permissions, through the broker or directly while none runs.

Each takes the node and its options and returns the lines to print.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from fluxmq.auth.credentials import SALT_BYTES, PasswordVerifier
from fluxmq.auth.users import (
    TopicPermission,
    User,
    VhostPermission,
    name_problem,
    permission_problem,
    tags_problem,
)
from fluxmq.cli.exits import EXIT_REFUSED, ExitError
from fluxmq.cli.formats import said, table
from fluxmq.cli.node import TargetNode
from fluxmq.cli.passwords import read_password
from fluxmq.control.password_hashes import store_password
from fluxmq.ipc.messages import USER_ADD, USER_DELETE, USER_PASSWORD
from fluxmq.ipc.permission_messages import (
    PERMISSION_CLEAR,
    PERMISSION_SET,
    TOPIC_PERMISSION_CLEAR,
    TOPIC_PERMISSION_SET,
    USER_TAGS,
    PermissionClear,
    PermissionSet,
    TopicPermissionSet,
    UserTags,
)
from fluxmq.ipc.user_messages import UserAdd, UserDelete, UserPassword, UserSummary

_PATTERNS: Final = ("configure", "write", "read")
_TOPIC_PATTERNS: Final = ("write", "read")


def _check(problem: str | None) -> None:
    if problem is not None:
        raise ExitError(EXIT_REFUSED, problem)


def _password(options: argparse.Namespace) -> str:
    if options.password is not None:
        return str(options.password)
    if options.password_file is None and not sys.stdin.isatty():
        options.password_stdin = True
    return read_password(options)


def _add_user(node: TargetNode, options: argparse.Namespace) -> list[str]:
    _check(name_problem(options.user))
    stored = store_password(_password(options), node.hash_parameters())
    user = User(options.user, stored.hash, stored.scram, (), (), enabled=True)
    node.change(USER_ADD, UserAdd(user).to_body())
    return said(options, f'Adding user "{options.user}" ...') + said(
        options,
        "Done. The user has no access to any virtual host yet; see: fluxmqctl set_permissions -h",
    )


def _change_password(node: TargetNode, options: argparse.Namespace) -> list[str]:
    stored = store_password(_password(options), node.hash_parameters())
    node.change(USER_PASSWORD, UserPassword(options.user, stored.hash, stored.scram).to_body())
    return said(options, f'Changing password for user "{options.user}" ...')


def _authenticate_user(node: TargetNode, options: argparse.Namespace) -> list[str]:
    known = node.password_hash(options.user)
    verifier = PasswordVerifier(node.hash_parameters(), secrets.token_bytes(SALT_BYTES))
    right = verifier.verify(_password(options).encode(), known.hash if known is not None else None)
    if not right or known is None or not known.enabled:
        raise ExitError(EXIT_REFUSED, f"user {options.user!r} is not authenticated")
    return said(options, f'Authenticating user "{options.user}" ...') + said(options, "Success")


def _delete_user(node: TargetNode, options: argparse.Namespace) -> list[str]:
    node.change(USER_DELETE, UserDelete(options.user).to_body())
    return said(options, f'Deleting user "{options.user}" ...')


def _set_user_tags(node: TargetNode, options: argparse.Namespace) -> list[str]:
    tags = tuple(options.tags)
    _check(tags_problem(tags))
    node.change(USER_TAGS, UserTags(options.user, tags).to_body())
    return said(options, f'Setting tags for user "{options.user}" to [{", ".join(tags)}] ...')


def _list_users(node: TargetNode, options: argparse.Namespace) -> list[str]:
    rows: list[Mapping[str, Any]] = [
        {"user": each.name, "tags": list(each.tags)} for each in node.users()
    ]
    return table(options, "Listing users ...", rows, ("user", "tags"))


def _set_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    permission = VhostPermission(options.vhost, options.configure, options.write, options.read)
    _check(permission_problem(permission))
    node.change(PERMISSION_SET, PermissionSet(options.user, permission).to_body())
    return said(
        options, f'Setting permissions for user "{options.user}" in vhost "{options.vhost}" ...'
    )


def _clear_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    node.change(PERMISSION_CLEAR, PermissionClear(options.user, options.vhost).to_body())
    return said(
        options, f'Clearing permissions for user "{options.user}" in vhost "{options.vhost}" ...'
    )


def _set_topic_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    permission = TopicPermission(options.vhost, options.exchange, options.write, options.read)
    _check(permission_problem(permission))
    wanted = TopicPermissionSet(options.user, permission)
    node.change(TOPIC_PERMISSION_SET, wanted.to_body())
    return said(
        options,
        f'Setting topic permissions on "{options.exchange}" for user "{options.user}"'
        f' in vhost "{options.vhost}" ...',
    )


def _clear_topic_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    wanted = PermissionClear(options.user, options.vhost, options.exchange)
    node.change(TOPIC_PERMISSION_CLEAR, wanted.to_body())
    return said(
        options,
        f'Clearing topic permissions for user "{options.user}" in vhost "{options.vhost}" ...',
    )


def _row(user: UserSummary, permission: VhostPermission | TopicPermission) -> dict[str, Any]:
    return {
        "user": user.name,
        **{name: getattr(permission, name) for name in permission.__slots__},
    }


def _list_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    rows: list[Mapping[str, Any]] = [
        _row(user, each)
        for user in node.users()
        for each in user.permissions
        if each.vhost == options.vhost
    ]
    title = f'Listing permissions for vhost "{options.vhost}" ...'
    return table(options, title, rows, ("user", *_PATTERNS))


def _list_topic_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    rows: list[Mapping[str, Any]] = [
        _row(user, each)
        for user in node.users()
        for each in user.topic_permissions
        if each.vhost == options.vhost
    ]
    title = f'Listing topic permissions for vhost "{options.vhost}" ...'
    return table(options, title, rows, ("user", "exchange", *_TOPIC_PATTERNS))


def _list_user_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    user = _user(node, options.user)
    rows: list[Mapping[str, Any]] = [_row(user, each) for each in user.permissions]
    title = f'Listing permissions for user "{options.user}" ...'
    return table(options, title, rows, ("vhost", *_PATTERNS))


def _list_user_topic_permissions(node: TargetNode, options: argparse.Namespace) -> list[str]:
    user = _user(node, options.user)
    rows: list[Mapping[str, Any]] = [_row(user, each) for each in user.topic_permissions]
    title = f'Listing topic permissions for user "{options.user}" ...'
    return table(options, title, rows, ("vhost", "exchange", *_TOPIC_PATTERNS))


def _user(node: TargetNode, name: str) -> UserSummary:
    for user in node.users():
        if user.name == name:
            return user
    raise ExitError(EXIT_REFUSED, f"there is no user {name!r}")


VERBS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    "add_user": _add_user,
    "change_password": _change_password,
    "authenticate_user": _authenticate_user,
    "delete_user": _delete_user,
    "set_user_tags": _set_user_tags,
    "list_users": _list_users,
    "set_permissions": _set_permissions,
    "clear_permissions": _clear_permissions,
    "list_permissions": _list_permissions,
    "list_user_permissions": _list_user_permissions,
    "set_topic_permissions": _set_topic_permissions,
    "clear_topic_permissions": _clear_topic_permissions,
    "list_topic_permissions": _list_topic_permissions,
    "list_user_topic_permissions": _list_user_topic_permissions,
}
