"""Rules of sessions that move between shards and nodes."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

OF_NODES = "tests/unit/shards/test_sessions_cluster.py::"
OF_ETCD = "tests/integration/test_etcd_owners.py::"
OF_RECORDS = "tests/integration/test_etcd_records.py::"

MUTATIONS = [
    Mutation(
        "owner_not_compared",
        "A node becomes the owner of a client id only if its key has not changed.",
        "OwnerIds._transact",
        "EtcdTransaction((compare,), (put,), (Get(key),))",
        "EtcdTransaction((), (put,), ())",
        OF_ETCD + "test_of_two_nodes_one_is_the_owner",
    ),
    Mutation(
        "no_end_of_term",
        "A node that does not reach etcd lets its clients go before another one can have them.",
        "OwnedIds._check",
        "if self._until and self._now() > self._until:",
        "if False:",
        OF_NODES + "test_a_node_without_etcd_disconnects_its_clients_in_time",
    ),
    Mutation(
        "no_first_barrier",
        "What was sent to the new place before it waits for a session is not taken for new.",
        "ExpectedRuns.keep",
        "if not self.open and group is None:",
        "if False:",
        OF_NODES + "test_a_message_that_is_late_at_the_new_node_is_not_new",
    ),
    Mutation(
        "no_barrier_of_the_former_node",
        "A session moves with what is on its way to the former node.",
        "SessionDepartures._on_ready",
        "self._peers.flush_all([node], partial(self._flushed, client_id, departure))",
        "self._flushed(client_id, departure, True)",
        OF_NODES + "test_a_message_that_is_late_at_the_former_node_moves_along",
    ),
    Mutation(
        "no_second_barrier",
        "What the session has is not taken for new when it comes to the new node later.",
        "SessionArrivals._on_state",
        "self._flush(arrival.others, partial(self._arrived, arrival, number, state))",
        "self._arrived(arrival, number, state, True)",
        OF_NODES + "test_a_message_that_comes_after_the_state_is_in_it",
    ),
    Mutation(
        "identities_ignored",
        "What both nodes have is delivered once.",
        "_Covered.covers",
        "return at >= 0 and number < ranges[at][1]",
        "return False",
        OF_NODES + "test_messages_on_their_way_are_neither_lost_nor_doubled",
    ),
    Mutation(
        "owner_before_disk",
        "A node becomes the owner when it has the session on its disk.",
        "SessionArrivals._arrived",
        "session.delivery.durable.home.when_safe(partial(self._safe, arrival))",
        "self._commit(arrival)",
        OF_NODES + "test_the_owner_changes_when_the_session_is_on_the_new_nodes_disk",
    ),
    Mutation(
        "resent_after_the_move",
        "What is sent again to the former node of a session is not acknowledged.",
        "NodeRuns.deliver",
        "Outcome.OVER_LIMIT if number <= heard.refuses_to else 0",
        "0",
        OF_NODES + "test_what_a_node_sends_again_to_the_former_one_is_refused",
    ),
    Mutation(
        "deaf_new_node",
        "The new node hears all nodes that the former one hears.",
        "NodePeers.flush_all",
        "if not here.issuperset(required) or not set(required).isdisjoint(down.values()):",
        "if False:",
        OF_NODES + "test_the_new_node_has_to_hear_whom_the_former_one_hears",
    ),
    Mutation(
        "former_session_kept",
        "A node that comes back deletes sessions that others have.",
        "OwnedIds._on_renewed",
        "self._user.taken(client_id)",
        "pass",
        OF_NODES + "test_the_session_of_a_node_whose_lease_has_ended_is_left_behind",
    ),
    Mutation(
        "record_of_others",
        "Only the owner of a client id records its subscriptions.",
        "RecordKeys._put",
        "(Valued(key_of(client), self._owner),)",
        "()",
        OF_RECORDS + "test_only_the_owner_records_subscriptions",
    ),
    Mutation(
        "record_deleted_by_former_owner",
        "A node deletes a record only while it is under its own lease.",
        "RecordKeys._delete",
        "(Leased(key, pool.lease),)",
        "()",
        OF_RECORDS + "test_a_former_owner_deletes_nothing_of_the_next_one",
    ),
    Mutation(
        "record_deleted_by_former_shard",
        "A shard deletes no record that another one has put since.",
        "RecordKeys._change",
        "if self._putters.get(key) == changes.shard]",
        "]",
        OF_RECORDS + "test_a_former_owner_deletes_nothing_of_the_next_one",
    ),
    Mutation(
        "refused_record_forgotten",
        "A session is recorded once its id is owned.",
        "Records._answered",
        "if client_id in self._sessions:",
        "if False:",
        "tests/unit/shards/test_records.py::test_a_session_is_recorded_once_its_id_is_owned",
    ),
]
