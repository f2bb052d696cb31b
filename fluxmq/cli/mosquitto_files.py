"""Conversion of mosquitto's configuration, passwords and access rules. Pure.

Sources: mosquitto.conf(5), mosquitto_passwd(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fluxmq.auth.credentials import hash_problem
from fluxmq.auth.users import name_problem, rules_problem

EVERYTHING: Final = {"publish": ["#"], "subscribe": ["#", "$SYS/#"]}
"""Topic filters of everybody if mosquitto has no rules."""
_LISTENER_OPTIONS: Final = frozenset(
    [
        "protocol",
        "certfile",
        "keyfile",
        "cafile",
        "require_certificate",
        "use_identity_as_username",
        "max_connections",
        "tls_version",
    ]
)
_SAME: Final = frozenset(
    [
        "persistence",
        "persistence_location",
        "autosave_interval",
        "autosave_on_changes",
        "pid_file",
        "user",
        "per_listener_settings",
        "password_file",
        "acl_file",
        "allow_anonymous",
    ]
)
"""Options that FluxMQ needs no setting for, or that are read elsewhere here."""
_SIZES: Final = {
    "message_size_limit": ("broker", "max_packet_size", ""),
    "max_packet_size": ("broker", "max_packet_size", ""),
    "max_queued_messages": ("session", "max_offline_queue_size", ""),
    "max_queued_bytes": ("session", "max_offline_queue_bytes", ""),
    "max_inflight_messages": ("session", "max_inflight_messages", ""),
    "max_keepalive": ("broker", "keep_alive_maximum", "s"),
    "sys_interval": ("broker", "sys_interval", "s"),
}
"""Section, key and unit of options that are numbers; 0 means no limit and is not taken over."""
_EXPIRY: Final = re.compile(r"(\d+)([hdwmy])")
_DAYS: Final = {"d": 1, "w": 7, "m": 30, "y": 365}
_EXPIRY_DAYS_MAX: Final = 49_710
"""Session expiry is a number of seconds in 32 bits (MQTT 5 section 3.1.2.11.2)."""
_ACCESS: Final = {
    "read": ("subscribe",),
    "write": ("publish",),
    "readwrite": ("publish", "subscribe"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One option, with the number of its line."""

    number: int
    key: str
    value: str


@dataclass(slots=True)
class MosquittoListener:
    """One listener: its address, and its options by name."""

    address: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Converted:
    """Settings, users as definitions, and what a person should read."""

    settings: dict[str, Any]
    definitions: dict[str, Any]
    notes: list[str]


def lines_of(text: str) -> Iterator[Line]:
    """Yield the options of a file, without comments."""
    for number, line in enumerate(text.splitlines(), 1):
        key, _, value = line.strip().partition(" ")
        if key and not key.startswith("#"):
            yield Line(number, key, value.strip())


def file_named(conf: str, option: str) -> str:
    """Return the file that the configuration names, such as its ``acl_file``; nothing if none."""
    return next((each.value for each in lines_of(conf) if each.key == option), "")


def convert(conf: str, passwords: str, rules: str) -> Converted:
    """Return settings and definitions from the contents of mosquitto's three files. Raises ValueError
    with the line of anything that would let in more, or others, than mosquitto does."""
    options = list(lines_of(conf))
    for line in options:
        if line.key in ("per_listener_settings", "include_dir") and line.value != "false":
            raise ValueError(
                f"line {line.number}: {line.key} cannot be converted: users and rules are the same"
                " on all listeners, and in one file"
            )
    notes: list[str] = []
    granted = _Rules(rules, file_named(conf, "acl_file") != "")
    anonymous = file_named(conf, "allow_anonymous")
    alone = not any(each.key in ("listener", "port") for each in options)
    allowed = anonymous == "true" or (alone and anonymous != "false")
    settings: dict[str, Any] = {
        "server": {"mqtt": _listeners(options, notes)},
        "auth": {"anonymous": {"allow": "always" if allowed else "never", **granted.of(None)}},
    }
    for line in options:
        _take(line, settings, notes)
    certificates = any(
        each.key == "use_identity_as_username" and each.value == "true" for each in options
    )
    users = list(_users(passwords, granted))
    known = {each["name"] for each in users}
    for name in granted.users - known:
        if certificates:
            users.append({"name": name, "tags": [], **granted.of(name)})
        else:
            notes.append(f"user {name} has rules and no password, and is left out")
    return Converted(settings, {"users": sorted(users, key=lambda each: each["name"])}, notes)


def _take(line: Line, settings: dict[str, Any], notes: list[str]) -> None:
    """Convert one option of the whole broker."""
    if line.key in _SIZES and line.value.isdigit():
        section, key, unit = _SIZES[line.key]
        if int(line.value):
            number: Any = f"{line.value}{unit}" if unit else int(line.value)
            settings.setdefault(section, {})[key] = number
        else:
            notes.append(f"line {line.number}: {line.key} 0: the limit is FluxMQ's default")
    elif line.key == "persistent_client_expiration":
        found = _EXPIRY.fullmatch(line.value)
        if found is None:
            raise ValueError(f"line {line.number}: {line.value} is not a time such as 14d")
        count, unit = int(found[1]), found[2]
        value = f"{count}h" if unit == "h" else f"{min(count * _DAYS[unit], _EXPIRY_DAYS_MAX)}d"
        session = settings.setdefault("session", {})
        session.update(default_expiry_interval=value, max_expiry_interval=value)
    elif line.key == "persistence" and line.value == "false":
        notes.append(f"line {line.number}: FluxMQ always stores what it acknowledges")
    elif line.key not in _LISTENER_OPTIONS | _SAME | {"listener", "port", "bind_address"}:
        notes.append(f"line {line.number}: {line.key} is not taken over")


def _listeners(options: list[Line], notes: list[str]) -> dict[str, Any]:
    """Return the section ``server.mqtt``."""
    listeners: list[MosquittoListener] = []
    first: dict[str, str] = {}
    for line in options:
        if line.key == "listener":
            port, _, host = line.value.partition(" ")
            if not port.isdigit() or port == "0":
                raise ValueError(f"line {line.number}: only listeners on a TCP port are supported")
            listeners.append(MosquittoListener(_address(host.strip(), port)))
        elif line.key in ("port", "bind_address"):
            first[line.key] = line.value
        elif line.key in _LISTENER_OPTIONS:
            (listeners[-1].options if listeners else first)[line.key] = line.value
    if "port" in first or not listeners:
        host = first.get("bind_address", "" if "port" in first else "127.0.0.1")
        listeners.insert(0, MosquittoListener(_address(host, first.get("port", "1883")), first))
    found: dict[str, Any] = {}
    for listener in listeners:
        kind, section = _listener(listener, notes)
        if kind in found:
            notes.append(f"listener {listener.address}: only one of kind {kind} is supported")
        else:
            found[kind] = section
    return found


def _listener(listener: MosquittoListener, notes: list[str]) -> tuple[str, dict[str, Any]]:
    """Return kind and section of one listener. Raises ValueError."""
    section: dict[str, Any] = {"addr": listener.address}
    options = listener.options
    connections = options.get("max_connections", "")
    if connections.isdigit() and int(connections):
        section["max_connections"] = int(connections)
    encrypted = "certfile" in options
    web = options.get("protocol") == "websockets"
    if not encrypted:
        return "websocket" if web else "tcp", section
    section["cert_file"], section["key_file"] = options["certfile"], options.get("keyfile", "")
    if "cafile" in options:
        section["ca_file"] = options["cafile"]
    if options.get("require_certificate") == "true":
        section["client_auth"] = "require"
        if options.get("use_identity_as_username") != "true":
            notes.append(
                f"listener {listener.address}: a client that names no user has its certificate's"
                " common name"
            )
    if options.get("tls_version") == "tlsv1.3":
        section["min_version"] = "1.3"
    return "websocket_tls" if web else "tls", section


def _address(host: str, port: str) -> str:
    host = "" if host in ("0.0.0.0", "::") else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _users(passwords: str, granted: _Rules) -> Iterator[dict[str, Any]]:
    """Yield the users of a password file as definitions. Raises ValueError."""
    for number, line in enumerate(passwords.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, stored = line.strip().partition(":")
        if not stored.startswith("$"):
            raise ValueError(
                f"password file, line {number}: the password is not hashed; run mosquitto_passwd -U"
            )
        problem = name_problem(name) or hash_problem(stored)
        if problem is not None:
            raise ValueError(f"password file, line {number}: {problem}")
        yield {"name": name, "password_hash": stored, "tags": [], **granted.of(name)}


class _Rules:
    """The rules of an ACL file. Raises ValueError for one that cannot be converted."""

    def __init__(self, text: str, exist: bool) -> None:
        self._exist = exist
        self._own: dict[str | None, list[tuple[str, str]]] = {}
        self._all: list[tuple[str, str]] = []
        user: str | None = None
        for line in lines_of(text):
            if line.key == "user":
                user = line.value
                self._own.setdefault(user, [])
            elif line.key == "topic":
                self._own.setdefault(user, []).extend(_rule(line))
            elif line.key == "pattern":
                self._all += _rule(line)
            else:
                raise ValueError(f"ACL file, line {line.number}: {line.key} is not known")

    @property
    def users(self) -> set[str]:
        """The users that have rules of their own."""
        return {each for each in self._own if each is not None}

    def of(self, user: str | None) -> dict[str, list[str]]:
        """Return the topic filters of a user; None: of a client without one."""
        if not self._exist:
            return {key: list(value) for key, value in EVERYTHING.items()}
        found: dict[str, list[str]] = {"publish": [], "subscribe": []}
        for kind, topic in [*self._own.get(user, ()), *self._all]:
            if topic not in found[kind] and (user is not None or "{username}" not in topic):
                found[kind].append(topic)
        return found


def _rule(line: Line) -> Iterator[tuple[str, str]]:
    """Yield kind and topic filter of one rule."""
    access, _, topic = line.value.partition(" ")
    if access == "deny":
        raise ValueError(
            f"ACL file, line {line.number}: FluxMQ only permits; write rules without 'deny'"
        )
    if access not in _ACCESS:
        access, topic = "readwrite", line.value
    topic = topic.strip()
    if line.key == "pattern":
        topic = topic.replace("%c", "{client_id}").replace("%u", "{username}")
    problem = rules_problem([topic])
    if problem is not None:
        raise ValueError(f"ACL file, line {line.number}: {problem}")
    for kind in _ACCESS[access]:
        yield kind, topic
