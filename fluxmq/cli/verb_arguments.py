"""Command line of the verbs named after rabbitmqctl's: commands, options and their help, nothing
else."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from fluxmq.auth.bans import KINDS
from fluxmq.cli.formats import FORMATTERS
from fluxmq.control.columns import LISTS
from fluxmq.routing.topology.names import APPLY_TO, DEFAULT_VHOST

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

STARTUP_SECONDS: Final = 300.0
"""Default time to wait for a node's start, as rabbitmqctl has it."""
DRAIN_SECONDS: Final = 60.0
QUEUE_TYPES: Final = ("classic", "quorum", "stream")


def add_verbs(commands: Commands) -> None:
    """Add all verbs to the parser's commands; the chosen one is in `command`."""
    _users(commands)
    _permissions(commands)
    _vhosts(commands)
    _user_limits(commands)
    _parameters(commands)
    _tracing(commands)
    _policies(commands)
    _lists(commands)
    _orders(commands)
    _mirrors(commands)
    _bans(commands)
    _definitions(commands)
    _health(commands)
    _leaving(commands)


def _verb(
    commands: Commands, name: str, text: str, *positional: tuple[str, str], vhost: bool = False
) -> argparse.ArgumentParser:
    """Add a verb with its positional arguments, each a name and its help."""
    added = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    added.set_defaults(command=name)
    added.add_argument("-q", "--quiet", action="store_true", help="suppress informational messages")
    added.add_argument(
        "-s",
        "--silent",
        action="store_true",
        help="suppress informational messages and column headers",
    )
    if vhost:
        added.add_argument(
            "-p",
            "--vhost",
            metavar="VHOST",
            default=DEFAULT_VHOST,
            help="virtual host (default: %(default)s)",
        )
    for argument, description in positional:
        added.add_argument(argument, metavar=argument.upper(), help=description)
    return added


def _formatted(verb: argparse.ArgumentParser) -> argparse.ArgumentParser:
    verb.add_argument(
        "--formatter",
        choices=FORMATTERS,
        default="table",
        help="how rows are printed (default: %(default)s, with tabs)",
    )
    verb.add_argument("--no-table-headers", action="store_true", help="do not print column headers")
    return verb


def _bans(commands: Commands) -> None:
    value = ("value", "the address, network (192.0.2.0/24), user name or MQTT client id")
    for name, text in (
        ("ban", "refuse connections to all nodes, and close those that are open"),
        ("unban", "lift a ban"),
    ):
        verb = _verb(commands, name, text)
        verb.add_argument("kind", choices=KINDS, help="what is banned")
        verb.add_argument(value[0], metavar=value[0].upper(), help=value[1])
        if name == "ban":
            verb.add_argument(
                "--for",
                dest="seconds",
                metavar="DURATION",
                help="such as 30m or 7d (default: until it is lifted)",
            )
            verb.add_argument(
                "--reason", metavar="TEXT", default="", help="a note, shown by list_bans"
            )
    _formatted(_verb(commands, "list_bans", "list the bans"))


def _definitions(commands: Commands) -> None:
    _verb(commands, "ping", "check that the broker runs and answers")
    file = ("file", "JSON file, - for standard output")
    _verb(commands, "export_definitions", "write everything that is declared to a file", file)
    file = ("file", "JSON file of this broker or of RabbitMQ, - for standard input")
    _verb(commands, "import_definitions", "declare what a file contains", file)


def _health(commands: Commands) -> None:
    port = ("port", "port number")
    protocol = ("protocol", "such as amqp, mqtt or http")
    for name, text, *positional in (
        ("alarms", "list the node's alarms"),
        ("check_alarms", "check that there are no alarms (exit code 1 if there are)"),
        ("check_local_alarms", "the same for this node only"),
        (
            "check_if_node_is_quorum_critical",
            "check that no group would lose its quorum if the node stopped",
        ),
        ("check_port_connectivity", "check that each listener's port can be connected to"),
        ("check_port_listener", "check that the node listens on a port", port),
        ("check_protocol_listener", "check that the node has a listener of a protocol", protocol),
        ("check_running", "check that the node serves clients (exit code 1 if not)"),
        ("check_virtual_hosts", "check that all virtual hosts are served"),
        ("cluster_status", "show the cluster's nodes, alarms and listeners"),
        ("environment", "show the settings in force, secrets hidden"),
        ("is_running", "show whether the node serves clients"),
        ("listeners", "list the addresses that the node listens on"),
        ("node_health_check", "check that the node serves clients and has no alarms"),
        ("server_version", "show the RabbitMQ version that the node is compatible with"),
    ):
        verb = _verb(commands, name, text, *positional)
        verb.add_argument(
            "--formatter", choices=FORMATTERS, default="table", help="json: one object"
        )


def _leaving(commands: Commands) -> None:
    starting = _verb(commands, "await_startup", "wait until the node serves clients")
    draining = _verb(
        commands,
        "drain",
        "refuse new clients, hand over the groups that the node leads, and wait until it may stop",
    )
    for verb, seconds in ((starting, STARTUP_SECONDS), (draining, DRAIN_SECONDS)):
        verb.add_argument(
            "--wait",
            metavar="SECONDS",
            type=float,
            default=seconds,
            help="how long to wait (default: %(default)s)",
        )
    _verb(commands, "suspend_listeners", "refuse new client connections; open ones stay")
    _verb(commands, "resume_listeners", "accept client connections again")


def _users(commands: Commands) -> None:
    user = ("user", "the user's name")
    for name, text in (
        ("add_user", "add a user without permissions"),
        ("change_password", "change a user's password"),
        ("authenticate_user", "check a user's password"),
    ):
        _password(_verb(commands, name, text, user))
    _verb(commands, "delete_user", "delete a user and its permissions", user)
    tags = _verb(commands, "set_user_tags", "replace a user's tags", user)
    tags.add_argument("tags", metavar="TAG", nargs="*", help="such as administrator")
    _formatted(_verb(commands, "list_users", "list users and their tags"))


def _password(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "password",
        metavar="PASSWORD",
        nargs="?",
        help="visible to every process of the machine; without it, it is asked for or read from"
        " standard input",
    )
    source = verb.add_mutually_exclusive_group()
    source.add_argument("--password-file", metavar="FILE", help="read the password from FILE")
    source.add_argument(
        "--password-stdin", action="store_true", help="read the password from standard input"
    )


def _permissions(commands: Commands) -> None:
    user = ("user", "the user's name")
    exchange = ("exchange", "name of the topic exchange")
    configure = ("configure", "pattern of names that the user may declare and delete")
    write = ("write", "pattern of names that the user may publish to and bind to")
    read = ("read", "pattern of names that the user may consume from and bind from")
    topic_write = ("write", "pattern of routing keys that the user may publish with")
    topic_read = ("read", "pattern of routing keys that the user may bind with")

    def verb(name: str, text: str, *positional: tuple[str, str]) -> argparse.ArgumentParser:
        return _verb(commands, name, text, *positional, vhost=True)

    verb(
        "set_permissions",
        "grant a user access to a virtual host, with its permissions there",
        user,
        configure,
        write,
        read,
    )
    verb("clear_permissions", "revoke a user's access to a virtual host", user)
    verb(
        "set_topic_permissions",
        "restrict a user's routing keys on a topic exchange",
        user,
        exchange,
        topic_write,
        topic_read,
    )
    clear = verb("clear_topic_permissions", "remove a user's restrictions on topic exchanges", user)
    clear.add_argument(
        "exchange", metavar="EXCHANGE", nargs="?", help="only on this exchange (default: on all)"
    )
    _formatted(verb("list_permissions", "list the permissions in a virtual host"))
    _formatted(verb("list_topic_permissions", "list the topic permissions in a virtual host"))
    _formatted(_verb(commands, "list_user_permissions", "list a user's permissions", user))
    _formatted(
        _verb(commands, "list_user_topic_permissions", "list a user's topic permissions", user)
    )


def _vhosts(commands: Commands) -> None:
    name = ("name", "the virtual host's name")
    add = _verb(commands, "add_vhost", "add a virtual host", name)
    add.add_argument(
        "--description", metavar="TEXT", default="", help="purpose of the virtual host"
    )
    add.add_argument("--tags", metavar="TAG,...", default="", help="labels, separated by commas")
    add.add_argument(
        "--default-queue-type",
        choices=QUEUE_TYPES,
        default=QUEUE_TYPES[0],
        help="queue type for declarations that name none (default: %(default)s)",
    )
    _verb(commands, "delete_vhost", "delete a virtual host with everything in it", name)
    limits = ("limits", 'a JSON object: {"max-connections": 100, "max-publish-rate": 1000}')
    _verb(commands, "set_vhost_limits", "replace a virtual host's limits", limits, vhost=True)
    _verb(commands, "clear_vhost_limits", "remove a virtual host's limits", vhost=True)
    listing = _listing(commands, "list_vhost_limits", "vhost_limits", "list limits")
    listing.add_argument(
        "--global", dest="everywhere", action="store_true", help="of all virtual hosts"
    )


def _parameters(commands: Commands) -> None:
    component = ("component", "vhost-limits or operator_policy")
    name, value = ("name", "the parameter's name"), ("value", "any JSON")
    of_component = component, name
    _verb(
        *(commands, "set_parameter", "set a runtime parameter", *of_component),
        ("value", "a JSON object"),
        vhost=True,
    )
    _verb(commands, "clear_parameter", "remove a runtime parameter", *of_component, vhost=True)
    _listing(commands, "list_parameters", "parameters", "list runtime parameters")
    _verb(commands, "set_global_parameter", "set a parameter of the cluster", name, value)
    _verb(commands, "clear_global_parameter", "remove a parameter of the cluster", name)
    text = "list the parameters of the cluster"
    _listing(commands, "list_global_parameters", "global_parameters", text)
    _verb(commands, "set_cluster_name", "set the name of the cluster", ("name", "the new name"))


def _user_limits(commands: Commands) -> None:
    user = ("user", "the user's name")
    limits = ("limits", 'a JSON object: {"max-connections": 10, "max-channels": 100}')
    _verb(commands, "set_user_limits", "set limits of a user", user, limits)
    limit = ("limit", "max-connections, max-channels or all")
    _verb(commands, "clear_user_limits", "remove a limit of a user", user, limit)
    listing = _listing(commands, "list_user_limits", "user_limits", "list limits of users")
    one = listing.add_mutually_exclusive_group()
    one.add_argument(
        *("--user", "-u"),
        dest="subject",
        metavar="USER",
        default="guest",
        help="of this user (default: %(default)s)",
    )
    one.add_argument("--global", dest="everywhere", action="store_true", help="of all users")


def _tracing(commands: Commands) -> None:
    text = "copy the messages of a virtual host to amq.rabbitmq.trace, until this node restarts"
    _verb(commands, "trace_on", text, vhost=True)
    _verb(commands, "trace_off", "copy the messages of a virtual host no longer", vhost=True)


def _policies(commands: Commands) -> None:
    for kind, what in (("policy", "a policy"), ("operator_policy", "an operator policy")):
        name = ("name", "name of the policy")
        add = _verb(
            commands,
            f"set_{kind}",
            f"set {what}",
            name,
            ("pattern", "regular expression for names of queues and exchanges"),
            ("definition", 'a JSON object: {"max-length": 1000}'),
            vhost=True,
        )
        add.add_argument(
            "--priority",
            metavar="NUMBER",
            type=int,
            default=0,
            help="of several matching policies, the one with the highest priority applies (default: %(default)s)",
        )
        add.add_argument(
            "--apply-to",
            choices=APPLY_TO,
            default=APPLY_TO[0],
            help="what it applies to (default: %(default)s)",
        )
        _verb(commands, f"clear_{kind}", f"clear {what}", name, vhost=True)
    _listing(commands, "list_policies", "policies", "list policies")
    _listing(commands, "list_operator_policies", "operator_policies", "list operator policies")
    _listing(
        commands,
        "explain-policy",
        "explained",
        "show every setting of a queue or exchange and where it comes from",
        ("subject", "name of the queue or exchange"),
    )


def _mirrors(commands: Commands) -> None:
    text = "copy what the mirrors of a mirrored queue lack to them, and wait until they have it"
    queue = ("queue", "name of the queue to synchronise")
    _verb(commands, "sync_queue", text, queue, vhost=True)
    text = "stop synchronising the mirrors of a queue"
    _verb(commands, "cancel_sync_queue", text, ("queue", "the queue's name"), vhost=True)
    for name, text in (
        (
            "check_if_cluster_has_classic_queue_mirroring_policy",
            "check that no policy mirrors queues (exit code 1 if one does)",
        ),
        (
            "check_if_node_is_mirror_sync_critical",
            "check that every mirrored queue that the node leads has a synchronised mirror online",
        ),
    ):
        check = _verb(commands, name, text)
        check.add_argument(
            "--formatter", choices=FORMATTERS, default="table", help="json: one object"
        )
    name = "list_policies_with_classic_queue_mirroring"
    _formatted(_verb(commands, name, "list the policies that mirror queues"))


def _listing(
    commands: Commands, name: str, what: str, text: str, *positional: tuple[str, str]
) -> argparse.ArgumentParser:
    """Add a list without a choice of columns."""
    listing = LISTS[what]
    verb = _formatted(_verb(commands, name, text, *positional, vhost=listing.scoped))
    verb.set_defaults(what=what, columns=None, everywhere=False)
    return verb


def _lists(commands: Commands) -> None:
    for what in (
        "queues",
        "exchanges",
        "bindings",
        "connections",
        "channels",
        "consumers",
        "vhosts",
    ):
        listing = LISTS[what]
        verb = _listing(commands, f"list_{what}", what, f"list {what}")
        verb.add_argument(
            "columns",
            metavar="COLUMN",
            nargs="*",
            help=f"of {', '.join(listing.columns)} (default: {' '.join(listing.shown)})",
        )


def _orders(commands: Commands) -> None:
    queue = ("queue", "the queue's name")
    delete = _verb(commands, "delete_queue", "delete a queue with its messages", queue, vhost=True)
    delete.add_argument("-e", "--if-empty", action="store_true", help="only if it is empty")
    delete.add_argument(
        "-u", "--if-unused", action="store_true", help="only if it has no consumers"
    )
    _verb(commands, "purge_queue", "remove the ready messages from a queue", queue, vhost=True)
    reason = ("reason", "reason that the client is given")
    _verb(
        commands,
        "close_connection",
        "close a connection",
        ("pid", "as list_connections prints it"),
        reason,
    )
    every: dict[str, Any] = {"dest": "everywhere", "action": "store_true"}
    close = _verb(commands, "close_all_connections", "close connections", reason, vhost=True)
    close.add_argument("--global", **every, help="of all virtual hosts")
    _verb(
        commands,
        "close_session",
        "end the session of an MQTT client, connected or not, and drop its queued messages",
        ("client_id", "its client identifier"),
    )
