"""Descriptions of the routes of the management interface, from which its OpenAPI document is made."""

from __future__ import annotations

from typing import Final, NamedTuple

CREATED: Final = "created"
"""Answer without a body, 201 or 204."""
EVENTS: Final = "events"
"""Answer of server-sent events."""


class RouteText(NamedTuple):
    """A route's summary, the names of its answer's and its body's schema, and its query parameters.

    An answer ending in ``[]`` is a list, paged if the query says so; an empty one has no body.
    """

    summary: str
    answer: str = ""
    body: str = ""
    query: tuple[str, ...] = ()


_SORTED: Final = ("sort", "sort_reverse", "columns")
_PAGED: Final = ("page", "page_size", "name", "use_regex", *_SORTED)
_SAMPLED: Final = ("msg_rates_age", "msg_rates_incr", "lengths_age", "lengths_incr")
_UNUSED: Final = ("if-unused",)
_EMPTY: Final = ("if-empty",)
_FORCE: Final = ("force",)
_EVENTS: Final = ("path",)
_LINES: Final = ("level", "text", "lines")

ROUTE_TEXTS: Final[dict[str, RouteText]] = {
    "GET overview": RouteText(
        "Show the node, numbers of objects, and message rates of the cluster",
        "Overview",
        "",
        _SAMPLED,
    ),
    "GET whoami": RouteText("Show the user of the request", "WhoAmI"),
    "GET nodes": RouteText("List the nodes of the cluster", "Node[]"),
    "GET nodes/{name}": RouteText("Show a node", "Node"),
    "GET nodes/{name}/memory": RouteText("Say that parts of the memory are not known", "Any"),
    "GET cluster-name": RouteText("Show the name of the cluster", "ClusterName"),
    "GET extensions": RouteText("List extensions of the management interface", "Any[]"),
    "GET feature-flags": RouteText("List feature flags, all of which are enabled", "Any[]"),
    "PUT feature-flags/{name}/enable": RouteText("Accept a feature flag, which is enabled already"),
    "GET deprecated-features": RouteText("List deprecated features: none", "Any[]"),
    "GET deprecated-features/used": RouteText("List deprecated features in use: none", "Any[]"),
    "GET aliveness-test/{vhost}": RouteText(
        "Declare a queue, publish a message to it, and get that", "Check"
    ),
    "POST rebalance/queues": RouteText("Spread the leaders of replication groups over the nodes"),
    "GET health/checks/alarms": RouteText("Check that no alarm is in effect", "Check"),
    "GET health/checks/local-alarms": RouteText(
        "Check that no alarm is in effect on this node", "Check"
    ),
    "GET health/checks/virtual-hosts": RouteText("Check that this node serves clients", "Check"),
    "GET health/checks/ready-to-serve-clients": RouteText(
        "Check that this node serves clients", "Check"
    ),
    "GET health/checks/is-in-service": RouteText("Check that this node serves clients", "Check"),
    "GET healthchecks/node": RouteText("Check that this node serves clients", "Check"),
    "GET healthchecks/node/{name}": RouteText("Check that this node serves clients", "Check"),
    "GET health/checks/node-is-quorum-critical": RouteText(
        "Check that every group keeps its majority without this node", "Check"
    ),
    "GET health/checks/node-is-mirror-sync-critical": RouteText(
        "Check that every mirrored queue that this node leads has a synchronised mirror online",
        "Check",
    ),
    "GET health/checks/port-listener/{port}": RouteText(
        "Check that there is a listener on a port", "Check"
    ),
    "GET health/checks/protocol-listener/{protocol}": RouteText(
        "Check that there is a listener for a protocol", "Check"
    ),
    "GET health/checks/certificate-expiration/{within}/{unit}": RouteText(
        "Check that no certificate of a listener expires within so many days, weeks, months or years",
        "Check",
    ),
    "PUT cluster-name": RouteText("Set the name of the cluster", "", "ClusterName"),
    "GET parameters": RouteText("List runtime parameters", "Parameter[]"),
    "GET parameters/{component}": RouteText(
        "List runtime parameters of a component", "Parameter[]"
    ),
    "GET parameters/{component}/{vhost}": RouteText(
        "List runtime parameters of a component in a virtual host", "Parameter[]"
    ),
    "GET parameters/{component}/{vhost}/{name}": RouteText("Show a runtime parameter", "Parameter"),
    "PUT parameters/{component}/{vhost}/{name}": RouteText(
        "Set a runtime parameter", "created", "ParameterValue"
    ),
    "DELETE parameters/{component}/{vhost}/{name}": RouteText("Clear a runtime parameter"),
    "GET global-parameters": RouteText("List global parameters", "GlobalParameter[]"),
    "GET global-parameters/{name}": RouteText("Show a global parameter", "GlobalParameter"),
    "PUT global-parameters/{name}": RouteText(
        "Set a global parameter", "created", "ParameterValue"
    ),
    "DELETE global-parameters/{name}": RouteText("Clear a global parameter"),
    "GET user-limits": RouteText("List the limits of users", "UserLimits[]"),
    "GET user-limits/{user}": RouteText("List the limits of a user", "UserLimits[]"),
    "PUT user-limits/{user}/{name}": RouteText("Set a limit of a user", "", "Limit"),
    "DELETE user-limits/{user}/{name}": RouteText("Clear a limit of a user"),
    "GET federation-links": RouteText("List federation links: none", "Any[]"),
    "GET federation-links/{vhost}": RouteText(
        "List federation links of a virtual host: none", "Any[]"
    ),
    "GET stream/connections": RouteText("List clients of the stream protocol: none", "Any[]"),
    "GET stream/connections/{vhost}": RouteText(
        "List clients of the stream protocol in a virtual host: none", "Any[]"
    ),
    "GET stream/publishers": RouteText("List publishers of the stream protocol: none", "Any[]"),
    "GET stream/publishers/{vhost}": RouteText(
        "List publishers of the stream protocol in a virtual host: none", "Any[]"
    ),
    "GET stream/consumers": RouteText("List consumers of the stream protocol: none", "Any[]"),
    "GET stream/consumers/{vhost}": RouteText(
        "List consumers of the stream protocol in a virtual host: none", "Any[]"
    ),
    "GET shovels": RouteText("List shovels: none", "Any[]"),
    "GET shovels/{vhost}": RouteText("List shovels of a virtual host: none", "Any[]"),
    "GET exchanges": RouteText("List the exchanges", "Exchange[]", "", _PAGED),
    "GET exchanges/{vhost}": RouteText(
        "List the exchanges of a virtual host", "Exchange[]", "", _PAGED
    ),
    "GET exchanges/{vhost}/{name}": RouteText("Show an exchange", "Exchange"),
    "PUT exchanges/{vhost}/{name}": RouteText(
        "Declare an exchange", "created", "ExchangeDeclaration"
    ),
    "DELETE exchanges/{vhost}/{name}": RouteText("Delete an exchange", "", "", _UNUSED),
    "POST exchanges/{vhost}/{name}/publish": RouteText(
        "Publish a message and wait until it is safe", "Routed", "Publication"
    ),
    "GET exchanges/{vhost}/{name}/bindings/{end:source|destination}": RouteText(
        "List the bindings from or to an exchange", "Binding[]"
    ),
    "GET queues": RouteText("List the queues with their message rates", "Queue[]", "", _PAGED),
    "GET queues/{vhost}": RouteText(
        "List the queues of a virtual host with their message rates", "Queue[]", "", _PAGED
    ),
    "GET queues/{vhost}/{name}": RouteText(
        "Show a queue with its message rates", "Queue", "", _SAMPLED
    ),
    "PUT queues/{vhost}/{name}": RouteText("Declare a queue", "created", "QueueDeclaration"),
    "DELETE queues/{vhost}/{name}": RouteText("Delete a queue", "", "", _UNUSED + _EMPTY),
    "GET queues/{vhost}/{name}/bindings": RouteText("List the bindings to a queue", "Binding[]"),
    "DELETE queues/{vhost}/{name}/contents": RouteText("Purge a queue"),
    "POST queues/{vhost}/{name}/get": RouteText("Get messages of a queue", "Message[]", "Get"),
    "POST queues/{vhost}/{name}/actions": RouteText(
        "Have the mirrors of a queue synchronised, or no longer", "", "Action"
    ),
    "GET bindings": RouteText("List the bindings", "Binding[]", "", _PAGED),
    "GET bindings/{vhost}": RouteText(
        "List the bindings of a virtual host", "Binding[]", "", _PAGED
    ),
    "GET bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}": RouteText(
        "List the bindings between an exchange and a queue or another exchange", "Binding[]"
    ),
    "POST bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}": RouteText(
        "Bind a queue or an exchange", "created", "BindingDeclaration"
    ),
    "GET bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}/{props}": RouteText(
        "Show a binding", "Binding"
    ),
    "DELETE bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}/{props}": RouteText(
        "Unbind a queue or an exchange"
    ),
    "GET connections": RouteText("List the connections", "Connection[]", "", _PAGED),
    "GET vhosts/{vhost}/connections": RouteText(
        "List the connections to a virtual host", "Connection[]", "", _PAGED
    ),
    "GET connections/username/{user}": RouteText(
        "List the connections of a user", "Connection[]", "", _PAGED
    ),
    "DELETE connections/username/{user}": RouteText("Close the connections of a user"),
    "GET connections/{name}": RouteText("Show a connection", "Connection"),
    "DELETE connections/{name}": RouteText("Close a connection"),
    "GET connections/{name}/channels": RouteText("List the channels of a connection", "Channel[]"),
    "GET channels": RouteText("List the channels", "Channel[]", "", _PAGED),
    "GET vhosts/{vhost}/channels": RouteText(
        "List the channels of a virtual host", "Channel[]", "", _PAGED
    ),
    "GET channels/{name}": RouteText("Show a channel", "Channel"),
    "GET consumers": RouteText("List the consumers", "Consumer[]", "", _SORTED),
    "GET consumers/{vhost}": RouteText(
        "List the consumers of a virtual host", "Consumer[]", "", _SORTED
    ),
    "GET vhosts": RouteText(
        "List the virtual hosts with their message rates", "Vhost[]", "", _PAGED
    ),
    "GET vhosts/{vhost}": RouteText("Show a virtual host with its message rates", "Vhost"),
    "PUT vhosts/{vhost}": RouteText(
        "Create or change a virtual host", "created", "VhostDeclaration"
    ),
    "DELETE vhosts/{vhost}": RouteText("Delete a virtual host with everything in it"),
    "GET vhosts/{vhost}/permissions": RouteText(
        "List the permissions in a virtual host", "Permission[]"
    ),
    "GET vhosts/{vhost}/topic-permissions": RouteText(
        "List the permissions on routing keys in a virtual host", "TopicPermission[]"
    ),
    "GET users": RouteText("List the users", "User[]", "", _PAGED),
    "GET users/without-permissions": RouteText(
        "List the users without permissions in any virtual host", "User[]"
    ),
    "POST users/bulk-delete": RouteText("Delete several users", "", "UserNames"),
    "GET users/{user}": RouteText("Show a user", "User"),
    "PUT users/{user}": RouteText("Create or change a user", "created", "UserDeclaration"),
    "DELETE users/{user}": RouteText("Delete a user"),
    "GET users/{user}/permissions": RouteText("List the permissions of a user", "Permission[]"),
    "GET users/{user}/topic-permissions": RouteText(
        "List the permissions of a user on routing keys", "TopicPermission[]"
    ),
    "GET permissions": RouteText("List the permissions of all users", "Permission[]", "", _SORTED),
    "GET permissions/{vhost}/{user}": RouteText(
        "Show the permissions of a user in a virtual host", "Permission"
    ),
    "PUT permissions/{vhost}/{user}": RouteText(
        "Set the permissions of a user in a virtual host", "created", "PermissionDeclaration"
    ),
    "DELETE permissions/{vhost}/{user}": RouteText(
        "Clear the permissions of a user in a virtual host"
    ),
    "GET topic-permissions": RouteText(
        "List the permissions on routing keys of all users", "TopicPermission[]", "", _SORTED
    ),
    "GET topic-permissions/{vhost}/{user}": RouteText(
        "List the permissions of a user on routing keys in a virtual host", "TopicPermission[]"
    ),
    "PUT topic-permissions/{vhost}/{user}": RouteText(
        "Set the permissions of a user on routing keys", "created", "TopicPermissionDeclaration"
    ),
    "DELETE topic-permissions/{vhost}/{user}": RouteText(
        "Clear the permissions of a user on routing keys"
    ),
    "GET vhost-limits": RouteText("List the limits of virtual hosts", "VhostLimits[]"),
    "GET vhost-limits/{vhost}": RouteText("List the limits of a virtual host", "VhostLimits[]"),
    "PUT vhost-limits/{vhost}/{name}": RouteText("Set a limit of a virtual host", "", "Limit"),
    "DELETE vhost-limits/{vhost}/{name}": RouteText("Clear a limit of a virtual host"),
    "GET policies": RouteText("List the policies", "Policy[]", "", _PAGED),
    "GET policies/{vhost}": RouteText(
        "List the policies of a virtual host", "Policy[]", "", _PAGED
    ),
    "GET policies/{vhost}/{name}": RouteText("Show a policy", "Policy"),
    "PUT policies/{vhost}/{name}": RouteText("Set a policy", "created", "PolicyDeclaration"),
    "DELETE policies/{vhost}/{name}": RouteText("Clear a policy"),
    "GET operator-policies": RouteText("List the operator policies", "Policy[]", "", _PAGED),
    "GET operator-policies/{vhost}": RouteText(
        "List the operator policies of a virtual host", "Policy[]", "", _PAGED
    ),
    "GET operator-policies/{vhost}/{name}": RouteText("Show an operator policy", "Policy"),
    "PUT operator-policies/{vhost}/{name}": RouteText(
        "Set an operator policy", "created", "PolicyDeclaration"
    ),
    "DELETE operator-policies/{vhost}/{name}": RouteText("Clear an operator policy"),
    "GET definitions": RouteText("Export all definitions", "Definitions"),
    "GET all-configuration": RouteText("Export all definitions", "Definitions"),
    "POST definitions": RouteText("Import definitions", "Any", "Definitions"),
    "GET definitions/{vhost}": RouteText("Export the definitions of a virtual host", "Definitions"),
    "POST definitions/{vhost}": RouteText(
        "Import definitions of a virtual host", "Any", "Definitions"
    ),
    "GET openapi.json": RouteText("Describe this interface", "Any"),
    "POST fluxmq/v1/control": RouteText(
        "Carry out a request of fluxmqctl: a message of the control socket as application/vnd.msgpack,"
        " answered by another",
    ),
    "GET fluxmq/v1/explain/{vhost}/{name}": RouteText(
        "Show the settings of a queue or an exchange, and where each comes from", "Explained[]"
    ),
    "GET fluxmq/v1/status": RouteText("Show the processes of this node", "NodeStatus"),
    "GET fluxmq/v1/cores": RouteText(
        "List the shards of this node with their cores and groups", "Core[]", "", _PAGED
    ),
    "GET fluxmq/v1/groups": RouteText(
        "List the replication groups of this node", "GroupRow[]", "", _PAGED
    ),
    "GET fluxmq/v1/groups/{group}": RouteText("Show a replication group of this node", "GroupRow"),
    "PUT fluxmq/v1/groups/{group}/pin": RouteText(
        "Move a group to a core or a shard of this node, and keep it there", "PinResult", "Place"
    ),
    "DELETE fluxmq/v1/groups/{group}/pin": RouteText(
        "Let the name of a group decide its shard again", "PinResult"
    ),
    "GET fluxmq/v1/queues": RouteText(
        "List the queues of this node with their consumer groups", "QueueRow[]", "", _PAGED
    ),
    "GET fluxmq/v1/queues/{vhost}/{name}/migration": RouteText(
        "Show whether a queue moves to another replication group", "Migrating"
    ),
    "PUT fluxmq/v1/queues/{vhost}/{name}/migration": RouteText(
        "Move a queue to another replication group, or make it a quorum queue",
        "Migrating",
        "Destination",
    ),
    "DELETE fluxmq/v1/queues/{vhost}/{name}/migration": RouteText(
        "Abort the move of a queue", "Migrating"
    ),
    "GET fluxmq/v1/raft": RouteText(
        "List the replicated groups of the cluster", "RaftRow[]", "", _PAGED
    ),
    "GET fluxmq/v1/raft/{group}": RouteText("Show a replicated group", "RaftRow"),
    "POST fluxmq/v1/raft/{group}/transfer": RouteText(
        "Transfer the leadership of a group to a node, or to the most up-to-date one",
        "Transfer",
        "Successor",
    ),
    "POST fluxmq/v1/raft/{group}/audit": RouteText(
        "Compare the copies of a group now", "AuditListing"
    ),
    "GET fluxmq/v1/members": RouteText(
        "List the members of replicated groups", "MemberRow[]", "", _PAGED
    ),
    "PUT fluxmq/v1/members/{group}/{node}": RouteText("Add a node to a group"),
    "DELETE fluxmq/v1/members/{group}/{node}": RouteText("Remove a node from a group"),
    "POST fluxmq/v1/rebalance": RouteText(
        "Spread the leaders of groups over the nodes, and list the moves", "GroupOutcomes"
    ),
    "GET fluxmq/v1/can-stop": RouteText(
        "Show whether every group keeps its quorum without this node", "CanStop"
    ),
    "DELETE fluxmq/v1/nodes/{node}": RouteText(
        "Remove a node from every group", "GroupOutcomes", "", _FORCE
    ),
    "GET fluxmq/v1/sessions": RouteText("List the MQTT sessions", "Session[]", "", _PAGED),
    "GET fluxmq/v1/sessions/{client}": RouteText("Show the session of an MQTT client", "Session"),
    "DELETE fluxmq/v1/sessions/{client}": RouteText(
        "End the session of an MQTT client, connected or not"
    ),
    "GET fluxmq/v1/sessions/{client}/subscriptions": RouteText(
        "List the subscriptions of an MQTT client", "Subscription[]", "", _PAGED
    ),
    "GET fluxmq/v1/subscriptions": RouteText(
        "List the subscriptions of all MQTT clients", "Subscription[]", "", _PAGED
    ),
    "GET fluxmq/v1/retained": RouteText(
        "List the retained messages, without their payloads", "Retained[]", "", _PAGED
    ),
    "GET fluxmq/v1/retained/{topic}": RouteText(
        "Show a retained message with the beginning of its payload", "Retained"
    ),
    "DELETE fluxmq/v1/retained/{topic}": RouteText("Delete a retained message"),
    "GET fluxmq/v1/outboxes": RouteText(
        "List messages kept here for queues that another node leads", "Outbox[]", "", _PAGED
    ),
    "GET fluxmq/v1/log": RouteText(
        "List the last log lines of this node, the newest first", "LogLine[]", "", _LINES
    ),
    "GET fluxmq/v1/bans": RouteText("List who may not connect to this node", "Ban[]"),
    "PUT fluxmq/v1/bans/{kind}/{value}": RouteText(
        "Refuse connections of an address, a user or an MQTT client", "", "BanDeclaration"
    ),
    "DELETE fluxmq/v1/bans/{kind}/{value}": RouteText("Lift a ban"),
    "GET fluxmq/v1/events": RouteText(
        "Stream the answer to a path, at most once a second, as server-sent events",
        "events",
        "",
        _EVENTS,
    ),
}
"""By method and path."""
