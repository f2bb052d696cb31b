"""Events of changes of users and their permissions: a routing key, and headers about the change.

Keys and headers are those of RabbitMQ's event exchange, except that a change does not say which user
made it.

Source: RabbitMQ's rabbitmq_event_exchange, and its calls of rabbit_event:notify.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from fluxmq.auth.hash_upgrades import same_password
from fluxmq.auth.users import User

UserEvent: TypeAlias = "tuple[str, dict[str, Any]]"
"""Routing key and headers."""


def user_events(before: Iterable[User], after: Iterable[User]) -> Iterator[UserEvent]:
    """Yield the events between two snapshots of users."""
    old = {each.name: each for each in before}
    new = {each.name: each for each in after}
    for name in sorted(old.keys() - new.keys()):
        yield "user.deleted", {"name": name}
    for name, user in sorted(new.items()):
        known = old.get(name)
        if known == user:
            continue
        if known is None:
            yield "user.created", {"name": name}
            known = User(name, user.hash, user.scram, (), (), True)
        if not same_password(known.hash, user.hash):
            yield "user.password.changed", {"name": name}
        if known.tags != user.tags:
            yield "user.tags.set", {"name": name, "tags": list(user.tags)}
        yield from _permissions(known, user)


def _permissions(before: User, after: User) -> Iterator[UserEvent]:
    name = after.name
    new = {each.vhost for each in after.permissions}
    for vhost in sorted({each.vhost for each in before.permissions} - new):
        yield "permission.deleted", {"user": name, "vhost": vhost}
    for each in after.permissions:
        if each not in before.permissions:
            patterns = {"configure": each.configure, "write": each.write, "read": each.read}
            yield "permission.created", {"user": name, "vhost": each.vhost, **patterns}
    topics = {(each.vhost, each.exchange) for each in after.topic_permissions}
    former = {(each.vhost, each.exchange) for each in before.topic_permissions}
    for vhost, exchange in sorted(former - topics):
        about = {"user": name, "vhost": vhost, "exchange": exchange}
        yield "topic.permission.deleted", about
    for topic in after.topic_permissions:
        if topic not in before.topic_permissions:
            about = {"user": name, "vhost": topic.vhost, "exchange": topic.exchange}
            yield "topic.permission.created", {**about, "write": topic.write, "read": topic.read}
