"""``fluxmqctl user``: users with the topic filters of MQTT, through the broker or directly while none
runs. Passwords are read and hashed here, and forgotten."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

import orjson

from fluxmq.auth.users import User, name_problem, rules_problem
from fluxmq.cli.exits import EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.node import TargetNode
from fluxmq.cli.passwords import read_password
from fluxmq.cli.tables import TextTable, colour_allowed, columns
from fluxmq.control.password_hashes import store_password
from fluxmq.ipc.messages import USER_ADD, USER_DELETE, USER_ENABLE, USER_PASSWORD, USER_PERMIT
from fluxmq.ipc.user_messages import (
    UserAdd,
    UserDelete,
    UserEnable,
    UserPassword,
    UserPermit,
    UserSummary,
)


def _user_add(node: TargetNode, options: argparse.Namespace) -> list[str]:
    publish, subscribe = tuple(options.publish or ()), tuple(options.subscribe or ())
    _check(name_problem(options.name), rules_problem(publish), rules_problem(subscribe))
    stored = store_password(read_password(options), node.hash_parameters())
    user = User(options.name, stored.hash, stored.scram, publish, subscribe, enabled=True)
    node.change(USER_ADD, UserAdd(user).to_body())
    lines = [f"user {options.name!r} added"]
    if not publish and not subscribe:
        lines.append(
            "the user may not publish or subscribe to anything yet; see: fluxmqctl user permit -h"
        )
    return lines


def _user_passwd(node: TargetNode, options: argparse.Namespace) -> list[str]:
    stored = store_password(read_password(options), node.hash_parameters())
    body = UserPassword(options.name, stored.hash, stored.scram).to_body()
    node.change(USER_PASSWORD, body)
    return [f"password of {options.name!r} changed"]


def _user_permit(node: TargetNode, options: argparse.Namespace) -> list[str]:
    publish = () if options.no_publish else options.publish and tuple(options.publish)
    subscribe = () if options.no_subscribe else options.subscribe and tuple(options.subscribe)
    if publish is None and subscribe is None:
        raise ExitError(
            EXIT_USAGE, "say what to permit: --publish, --subscribe or their --no- forms"
        )
    _check(rules_problem(publish or ()), rules_problem(subscribe or ()))
    body = UserPermit(options.name, publish, subscribe).to_body()
    node.change(USER_PERMIT, body)
    return [f"permissions of {options.name!r} changed"]


def _user_enable(node: TargetNode, options: argparse.Namespace) -> list[str]:
    body = UserEnable(options.name, enabled=True).to_body()
    node.change(USER_ENABLE, body)
    return [f"user {options.name!r} enabled"]


def _user_disable(node: TargetNode, options: argparse.Namespace) -> list[str]:
    body = UserEnable(options.name, enabled=False).to_body()
    node.change(USER_ENABLE, body)
    return [f"user {options.name!r} disabled"]


def _user_delete(node: TargetNode, options: argparse.Namespace) -> list[str]:
    body = UserDelete(options.name).to_body()
    node.change(USER_DELETE, body)
    return [f"user {options.name!r} deleted"]


def _user_list(node: TargetNode, options: argparse.Namespace) -> list[str]:
    users = node.users()
    if options.json:
        return [orjson.dumps(_row(user)).decode() for user in users]
    if not users:
        return ["there are no users"]
    table = TextTable(columns("USER, LOGIN, PUBLISH, SUBSCRIBE"))
    for number, user in enumerate(users):
        table.colours[number, 1] = "green" if user.enabled else "red"
        login = "enabled" if user.enabled else "disabled"
        rules = [" ".join(rules) or "-" for rules in (user.publish, user.subscribe)]
        table.rows.append([user.name, login, *rules])
    return table.lines(colour=colour_allowed())


def _row(user: UserSummary) -> dict[str, object]:
    return {
        "name": user.name,
        "enabled": user.enabled,
        "scram": user.scram,
        "publish": user.publish,
        "subscribe": user.subscribe,
    }


def _check(*problems: str | None) -> None:
    for problem in problems:
        if problem is not None:
            raise ExitError(EXIT_REFUSED, problem)


COMMANDS: Final[dict[str, Callable[[TargetNode, argparse.Namespace], list[str]]]] = {
    "user add": _user_add,
    "user passwd": _user_passwd,
    "user permit": _user_permit,
    "user enable": _user_enable,
    "user disable": _user_disable,
    "user delete": _user_delete,
    "user list": _user_list,
}
