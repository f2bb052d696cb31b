"""Commands of RabbitMQ's programs: those that exist here, and what to use instead of the others."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = (
    *("add_user", "add_vhost", "alarms", "authenticate_user", "await_startup"),
    *("cancel_sync_queue", "change_password", "check_alarms"),
    "check_if_cluster_has_classic_queue_mirroring_policy",
    *("check_if_node_is_mirror_sync_critical", "check_if_node_is_quorum_critical"),
    "check_local_alarms",
    *("check_port_connectivity", "check_port_listener", "check_protocol_listener", "check_running"),
    *("check_virtual_hosts", "clear_global_parameter", "clear_operator_policy"),
    *("clear_parameter", "clear_permissions", "clear_policy"),
    *("clear_topic_permissions", "clear_vhost_limits", "close_all_connections"),
    *("close_connection", "cluster_status", "delete_queue", "delete_user", "delete_vhost"),
    *("environment", "export_definitions", "forget_cluster_node", "import_definitions"),
    *("is_running", "list_bindings", "list_channels", "list_connections", "list_consumers"),
    *("list_exchanges", "list_global_parameters", "list_operator_policies", "list_parameters"),
    *("list_permissions", "list_policies", "list_policies_with_classic_queue_mirroring"),
    *("list_queues", "list_topic_permissions", "list_user_permissions"),
    *("list_user_topic_permissions", "list_users", "list_vhost_limits", "list_vhosts", "listeners"),
    *("node_health_check", "ping", "purge_queue", "rebalance", "resume_listeners"),
    *("server_version", "set_cluster_name", "set_global_parameter", "set_operator_policy"),
    *("set_parameter", "set_permissions", "set_policy", "set_topic_permissions"),
    *("set_user_tags", "set_vhost_limits", "status", "suspend_listeners", "sync_queue", "version"),
)
"""Commands under RabbitMQ's names."""

_ERLANG: Final = "there is no Erlang runtime here"
_SERVICE: Final = "start and stop the process fluxmq-supervisor, with systemctl, SIGTERM or the container's engine"
_MEMBERS: Final = (
    "fluxmqctl join and leave change the nodes of a cluster; fluxmqctl grow and shrink change the"
    " members of a group"
)
_SETTINGS: Final = "change the settings file, and send SIGHUP to fluxmq-supervisor"
_METRICS: Final = "the metrics at /metrics and the management interface show it"
_ENCRYPTED: Final = "the settings file takes secrets from files and the environment instead"

REFUSED: Final[dict[str, str]] = {
    "eval": f"{_ERLANG}; the management interface and fluxmqctl show and change a node",
    "eval_file": f"{_ERLANG}; the management interface and fluxmqctl show and change a node",
    "exec": f"{_ERLANG}; the management interface and fluxmqctl show and change a node",
    "remote_shell": _ERLANG,
    "observer": f"{_ERLANG}; fluxmqctl status --watch shows the node's processes",
    **dict.fromkeys(("erlang_cookie_hash", "erlang_cookie_sources", "erlang_version"), _ERLANG),
    **dict.fromkeys(("runtime_thread_stats", "maybe_stuck", "force_gc"), _ERLANG),
    **dict.fromkeys(("resolver_info", "resolve_hostname", "list_network_interfaces"), _ERLANG),
    **dict.fromkeys(("start_app", "stop_app", "stop", "shutdown", "wait"), _SERVICE),
    "reset": "stop the node and remove its data directory",
    "force_reset": "stop the node and remove its data directory",
    "force_boot": "fluxmqctl force-quorum, if a majority is lost for good",
    **dict.fromkeys(("join_cluster", "change_cluster_node_type"), _MEMBERS),
    **dict.fromkeys(("update_cluster_nodes", "rename_cluster_node", "discover_peers"), _MEMBERS),
    "await_online_nodes": "fluxmqctl cluster_status shows which nodes are in contact",
    **dict.fromkeys(
        ("grow", "shrink", "add_member", "delete_member"),
        "members are those of a replication group, with all its queues: fluxmqctl grow and shrink",
    ),
    **dict.fromkeys(
        ("set_user_limits", "clear_user_limits", "list_user_limits"),
        "limits are those of virtual hosts: set_vhost_limits",
    ),
    **dict.fromkeys(
        ("enable_feature_flag", "list_feature_flags", "list_deprecated_features"),
        "all features are always enabled",
    ),
    **dict.fromkeys(("set_log_level", "set_vm_memory_high_watermark"), _SETTINGS),
    **dict.fromkeys(("set_disk_free_limit", "trace_on", "trace_off"), _SETTINGS),
    "rotate_logs": "logs go to standard output: the service manager keeps them",
    **dict.fromkeys(
        ("log_location", "log_tail", "log_tail_stream"),
        "logs go to standard output: journalctl, or the container engine's logs",
    ),
    **dict.fromkeys(("encode", "decode", "encrypt_conf_value", "decrypt_conf_value"), _ENCRYPTED),
    "hash_password": "add_user hashes passwords; definitions may hold RabbitMQ's hashes",
    "clear_password": "fluxmqctl user disable stops a user from logging in",
    **dict.fromkeys(
        ("set_vhost_tags", "update_vhost_metadata"),
        "add_vhost of a virtual host that exists changes its description and tags",
    ),
    "restart_vhost": "virtual hosts are not stopped one by one",
    "reconcile_vhosts": "every node serves every virtual host",
    "close_all_user_connections": "list_connections pid user, then close_connection of each",
    "list_unresponsive_queues": "fluxmqctl groups and raft show what does not answer",
    **dict.fromkeys(("list_ciphers", "list_hashes"), "OpenSSL's and argon2id are used"),
    **dict.fromkeys(("cipher_suites", "tls_versions"), "openssl ciphers lists them"),
    "certificates": "openssl s_client shows the certificate of a listener",
    "check_certificate_expiration": "openssl s_client shows the certificate of a listener",
    **dict.fromkeys(("memory_breakdown", "message_size_stats"), _METRICS),
    **dict.fromkeys(("list_node_auth_attempt_stats", "reset_node_auth_attempt_metrics"), _METRICS),
    "quorum_status": "fluxmqctl raft and members show the replicated groups",
    "stream_status": "fluxmqctl raft and members show the replicated groups",
    "schema_info": "users and topology are replicated in the group _meta: fluxmqctl raft _meta",
    "command_line_arguments": "the environment command shows the settings in force",
    "os_env": "the environment command shows the settings in force",
    "report": "status, cluster_status and environment together show the same",
    "is_booting": "is_running shows what the node waits for",
    "autocomplete": "fluxmqctl completion writes a script for the shell",
}
"""Sentences by command that has no meaning here."""
