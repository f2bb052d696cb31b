"""Mutations of the topology's and users' rules: what is kept, when it is told, and who is let in."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

KEEPER = "fluxmq/control/topology_service.py"
OF_KEEPER = "tests/unit/control/test_topology_service.py::"
OF_DISK = "tests/unit/control/test_topology_disk.py::"
STORE = "fluxmq/control/metadata.py"
OF_STORE = "tests/unit/control/test_metadata.py::"
CLIENT = "fluxmq/ipc/topology_client.py"
OF_CLIENT = "tests/unit/ipc/test_topology_client.py::"
PERMISSIONS = "fluxmq/auth/permissions.py"
OF_PERMISSIONS = "tests/unit/auth/test_permissions.py::"
PATTERNS = "fluxmq/model/patterns.py"
OF_PATTERNS = "tests/unit/model/test_patterns.py::"
OF_ETCD = "tests/integration/test_etcd_metadata.py::"

MUTATIONS = [
    # Kept
    Mutation(
        "topology_is_synced",
        "A row that outlives the machine is synced before it is answered.",
        "MetadataStore.write_topology.synced",
        "synced = self.topology.durable(writes)",
        "synced = False",
        OF_STORE + "test_only_what_outlives_the_machine_is_synced",
    ),
    Mutation(
        "deletions_are_synced",
        "So is that it is gone.",
        "TopologyRows.durable",
        """if stored is not None and not stored[0]:
                return True""",
        "",
        OF_STORE + "test_only_what_outlives_the_machine_is_synced",
    ),
    Mutation(
        "transient_ends_with_the_node",
        "What is not durable is not there after the node's restart.",
        "TopologyService._is_transient",
        "return not self.topology.is_durable(row.kind, row.key) or _of_settings(row)",
        "return _of_settings(row)",
        OF_DISK + "test_what_is_durable_outlives_the_node_and_the_rest_this_process",
    ),
    Mutation(
        "transient_outlives_control",
        "What is not durable is still there after the control process's restart.",
        "MetadataStore.begin",
        """if last == node:
            return False""",
        "",
        OF_DISK + "test_what_is_durable_outlives_the_node_and_the_rest_this_process",
    ),
    Mutation(
        "settings_are_not_written",
        "A queue of the settings that is taken out of them is gone.",
        "TopologyService._is_transient",
        "or _of_settings(row)",
        "",
        OF_DISK + "test_queues_of_the_settings_are_rows_that_are_not_written",
    ),
    Mutation(
        "unwritten_is_forgotten",
        "What could not be written did not happen.",
        "TopologyService._give_up",
        """self._damaged = True
            try:
                await self._restore()""",
        """try:
                pass""",
        OF_DISK + "test_what_could_not_be_written_did_not_happen",
    ),
    Mutation(
        "guest_once",
        "The user that everybody knows does not come back when it was deleted.",
        "MetadataStore.seed",
        'database.execute("UPDATE state SET seeded = 1")',
        'database.execute("UPDATE state SET seeded = 0")',
        OF_STORE + "test_the_first_node_makes_a_user_where_there_is_none_once",
    ),
    Mutation(
        "guest_alone",
        "A node that has users gets no user that everybody knows.",
        "MetadataStore.seed",
        'if database.execute("SELECT 1 FROM users LIMIT 1").fetchone() is None:',
        "if True:",
        OF_STORE + "test_the_first_node_makes_no_user_beside_others",
    ),
    Mutation(
        "old_permissions_go",
        "A virtual host that is made again lets nobody in whom the old one did.",
        "drop_permissions",
        """database.execute(f"DELETE FROM {table} WHERE vhost = ?", (vhost,))""",
        "pass",
        OF_STORE + "test_permissions_go_with_their_virtual_host",
    ),
    # Told
    Mutation(
        "told_when_written",
        "No shard is told what is not on disk yet.",
        "TopologyService._lacking",
        """async with self._writing:
            if self._damaged:""",
        """if True:
            if self._damaged:""",
        OF_DISK + "test_what_will_not_be_written_is_told_to_nobody",
    ),
    Mutation(
        "answered_when_told",
        "A change is answered when every live shard has it.",
        "RevisionBarrier._missing_here",
        "return sorted(name for name in self._live() if held.get(name, -1) < revision)",
        "return []",
        OF_KEEPER + "test_shards_that_do_not_confirm_in_time_are_named",
    ),
    Mutation(
        "lost_owners",
        "Exclusive queues of a shard that ended are dropped.",
        "TopologyService._left_by_others",
        "where[1] != hello.pid",
        "where[1] == hello.pid",
        OF_DISK + "test_exclusive_queues_go_with_the_process_that_had_their_connection",
    ),
    Mutation(
        "answered_when_held",
        "A change is answered when this shard's copy has it.",
        "TopologyClient._tell.reached",
        "reached = [each for each in self._ahead if each[0] <= revision]",
        "reached = list(self._ahead)",
        OF_CLIENT + "test_a_change_is_answered_when_the_copy_has_it",
    ),
    Mutation(
        "changes_keep_order",
        "Changes that are sent again are sent in the order in which they were asked for.",
        "TopologyClient._put_back",
        "sorted([*unanswered, *self._waiting], key=lambda each: each.number)",
        "[*self._waiting, *unanswered]",
        OF_CLIENT + "test_changes_are_sent_again_in_order_when_control_is_back",
    ),
    Mutation(
        "refused_is_not_made",
        "A change that was answered with a refusal because control was away is not made later.",
        "TopologyClient.tick",
        "self._waiting = deque(each for each in self._waiting if each.deadline > now)",
        "self._waiting = deque(self._waiting)",
        OF_CLIENT + "test_a_change_that_was_refused_is_not_made_later",
    ),
    # Let in
    Mutation(
        "empty_grants_nothing",
        "An empty pattern permits nothing.",
        "_pattern",
        'compile_pattern(text or "^$")',
        "compile_pattern(text)",
        OF_PERMISSIONS + "test_each_pattern_decides_about_its_operation_alone",
    ),
    Mutation(
        "names_are_text",
        "A name that a client chose is text in a pattern, and widens nothing.",
        "permissions:_filled",
        "quote(values[found[1]])",
        "values[found[1]]",
        OF_PERMISSIONS + "test_names_chosen_by_a_client_do_not_widen_a_grant",
    ),
    Mutation(
        "nobody_has_no_name",
        "A client without an id is not every client.",
        "permissions:_filled",
        r'or r"[^\s\S]"',
        "",
        OF_PERMISSIONS + "test_a_client_without_an_id_is_not_granted_everything",
    ),
    Mutation(
        "look_aheads_of_all",
        "A look-ahead of one alternative does not decide about the others.",
        "patterns:_split",
        "or _alternatives(rest)",
        "",
        OF_PATTERNS + "test_patterns_refused",
    ),
    Mutation(
        "answered_before_other_nodes_know",
        "Who changes the topology is answered when the other nodes work by the change.",
        "RevisionBarrier._missing",
        "self._others.lagging(revision) if self._others is not None else ()",
        "()",
        OF_ETCD + "test_who_changes_something_is_answered_when_all_nodes_have_it",
        slow=True,
    ),
    Mutation(
        "slow_node_is_waited_for_each_time",
        "A node that was waited for in vain holds up nobody else.",
        "RevisionBarrier.missing",
        "self._others.give_up(revision)",
        "pass",
        OF_ETCD + "test_who_changes_something_is_answered_when_all_nodes_have_it",
        slow=True,
    ),
    Mutation(
        "changes_without_compare",
        "A change is decided by what is committed when it is.",
        "SharedMetadata._commit",
        "(Changed(ROOT, known), *groups)",
        "groups",
        OF_ETCD + "test_changes_at_once_on_all_nodes_are_all_made",
        slow=True,
    ),
    Mutation(
        "change_stays_that_is_not_committed",
        "A change that is not committed is undone.",
        "TopologyService._undone_if_not_committed",
        "topology.take(reversal(topology, before))",
        "pass",
        OF_ETCD + "test_a_node_works_by_its_copy_while_etcd_cannot_be_reached",
        slow=True,
    ),
    Mutation(
        "permissions_outlive_their_vhost",
        "Permissions go with their virtual host.",
        "SharedMetadata._with_users",
        "if not put:",
        "if True:",
        OF_ETCD + "test_users_are_changed_on_any_node",
        slow=True,
    ),
    Mutation(
        "foreign_topology_replaced",
        "A node does not give up what the cluster did not begin with.",
        "MetadataCopy.replace",
        "state.age != NOTHING and state.root.cluster != root.cluster",
        "False",
        OF_ETCD + "test_what_would_be_lost_keeps_a_node_out",
        slow=True,
    ),
    Mutation(
        "member_that_has_run_starts_afresh",
        "A member that has run and lost its directory waits until it is admitted again.",
        "admission_of",
        "return Admission.WAITING if member.started else Admission.FIRST",
        "return Admission.FIRST",
        "tests/unit/supervisor/test_etcd_members.py::"
        "test_a_member_that_has_run_waits_until_it_is_admitted",
    ),
]
