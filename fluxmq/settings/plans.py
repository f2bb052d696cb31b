"""The replication groups of a node as its settings resolve: members, addresses, directory, timings.
Pure.

Much in the settings is inherited or derived; it is resolved here once, so that every process of
every node in the cluster gets the same result. A plan is how a group *starts*: once it runs, its
log determines its members, and ``nodes`` has the addresses of those that may be added.

Sources: the keys and inheritance of the founding documents (replication groups); choice of members
by rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
1998).

Longer than 500 lines because members, addresses and timings of a group follow from the same settings.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from fluxmq.settings.clustering import (
    DEFAULT_GROUP,
    OWN_GROUP_PREFIXES,
    RaftGroup,
    check_name,
)
from fluxmq.settings.group_names import (
    LED,
    SIZED,
    SetGroup,
    copies_in,
    group_of_set,
    is_mirrored,
    name_of_set,
    preferred_leader,
)
from fluxmq.settings.listen_addresses import (
    ListenAddress,
    clash,
    listen_addresses,
    listen_addresses_of_others,
    shifted,
)
from fluxmq.settings.queues import QueueSettings
from fluxmq.settings.schema import Settings
from fluxmq.settings.values import split_address

DERIVED_PORTS: Final = 999
"""Range of ports above that of cluster.raft.bind_addr over which groups without an address are
spread."""

MIRROR_TAKES_OVER_SECONDS: Final = 15.0
"""Time until a mirror leads in place of a node that has ended: its lease of ten seconds, and what follows."""

_NOT_GIVEN: Final = RaftGroup()


class UnknownGroup(LookupError):  # noqa: N818 - named as the other lookup errors are
    """No such group on this node. ``why`` is the rest of a sentence that begins with the group's
    name."""

    def __init__(self, group: str, why: str) -> None:
        super().__init__(f"{group or 'group'} {why}")
        self.group, self.why = group, why


class GroupMember(NamedTuple):
    """A node that has a replica of a group. ``number``: its id in Raft; ``address``: of the group's
    endpoint there."""

    node: str
    number: int
    address: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group as this node's settings resolve it. Durations in seconds.

    ``bind_addr``: of the group's endpoint on this node; empty while the node is alone and none is
    given. ``data_dir``: the parent of the group's directory; None for below storage.data_dir.
    ``members``: the initial members, ascending by number. ``nodes``: all possible members, this
    node and those that have joined the cluster among them. ``own``: this node's number, 0 when it does
    not begin the group; a node that has left the cluster and joined again begins none of before.
    ``min_in_sync_replicas`` is never above the number of members. ``snapshot_threshold``: entries.
    """

    name: str
    bind_addr: str
    data_dir: str | None
    members: tuple[GroupMember, ...]
    nodes: tuple[GroupMember, ...]
    own: int
    write_policy: str
    distribution_mode: str
    sync_mode: bool
    ack_timeout: float
    replication_factor: int
    min_in_sync_replicas: int
    heartbeat_timeout: float
    election_timeout: float
    snapshot_interval: float
    snapshot_threshold: int


def member_number(node_id: str) -> int:
    """Return a node's Raft id: a hash of its name, so the same everywhere and permanent; never
    0."""
    return int.from_bytes(hashlib.sha256(node_id.encode()).digest()[:6], "big") + 1


class GroupPlans:
    """Resolved plans of a node's groups. Each is made once; groups that appear at run time keep the
    port they get. As there are ``DERIVED_PORTS`` ports, what is remembered is bounded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._raft = settings.cluster.raft
        self._clustered = settings.cluster.enabled and settings.cluster.raft.enabled
        self._initial, self._there = _initial(settings)
        self._history = settings.cluster.history
        self._taken = list(listen_addresses(settings))
        self._taken_by_others = list(listen_addresses_of_others(settings))
        self._derived: dict[str, str] = {}
        self._made: dict[str, GroupPlan] = {}
        self._led: dict[tuple[str, str], str] = {}
        """Answers of `led_by`, which many node sets make expensive."""
        # Groups of the file first, so that none that appears later takes one of their addresses.
        for group in self.configured() if self._clustered else ():
            try:
                self._own_address(group)
            except UnknownGroup:
                continue  # reported by the checks of the file, and again on a request for the group

    def follow(self, settings: Settings) -> None:
        """Use settings in which other nodes are named: nodes have joined the cluster, or have
        left. Groups keep their addresses on this node."""
        self._settings = settings
        self._raft = settings.cluster.raft
        self._initial, self._there = _initial(settings)
        self._history = settings.cluster.history
        self._taken_by_others = list(listen_addresses_of_others(settings))
        self._made.clear()
        self._led.clear()

    def release(self, groups: Collection[str]) -> None:
        """Let other groups have the addresses of groups that there are no more."""
        for group in groups:
            address = self._derived.pop(group, "")
            if address:
                self._taken.remove(_derived_address(group, address))

    def replicated(self, group: str) -> bool:
        """Return whether the group belongs to the cluster rather than to this node alone."""
        return self._clustered and not group.startswith(OWN_GROUP_PREFIXES)

    def configured(self) -> tuple[str, ...]:
        """Return the groups that the file names for this node, the default group first, then in its
        order."""
        if not self._raft.enabled:
            return ()
        listed = (name for name, group in self._raft.groups.items() if group.enabled)
        named = (queue.replication_group(self._raft) for queue in self._settings.queues)
        off = {name for name, group in self._raft.groups.items() if not group.enabled}
        found = dict.fromkeys([DEFAULT_GROUP, *listed, *(name for name in named if name)])
        return tuple(name for name in found if name not in off)

    def of(self, group: str) -> GroupPlan:
        """Return the plan of a group. Raises UnknownGroup when the settings have no such group and
        do not allow creating it, or when its derived address is taken."""
        try:
            check_name(group)
        except ValueError as error:
            raise UnknownGroup(group, str(error)) from None
        if group.startswith(OWN_GROUP_PREFIXES):
            raise UnknownGroup(group, "is not a valid name for a replication group of queues")
        on_set = group_of_set(group)
        if on_set is not None:
            self._check_set(group, on_set)
            return self._plan(group)
        if is_mirrored(group):
            if group not in self._history.mirrors:
                raise UnknownGroup(
                    group, "is a mirrored group of which this node has not heard yet"
                )
            return self._plan(group)
        known = group == DEFAULT_GROUP or group in self._raft.groups or self._copies(group) > 0
        # Also for a node that the settings name no longer: its group may have queues.
        if not (known or group.startswith(LED) or self._raft.auto_provision_groups):
            raise UnknownGroup(
                group,
                "is not in cluster.raft.groups, and cluster.raft.auto_provision_groups is false",
            )
        return self._plan(group)

    def for_queue(self, group: str) -> GroupPlan:
        """Return the plan of a group that a queue is to be in. Raises UnknownGroup as `of` does, for a
        group that a node should lead that the cluster does not have, and for a mirrored group, which
        policies choose."""
        if is_mirrored(group):
            raise UnknownGroup(group, "is a mirrored group: a policy has queues mirrored")
        plan, node = self.of(group), preferred_leader(group)
        listed = group in self._raft.groups or self._raft.auto_provision_groups
        if node and not listed and node not in {each.node for each in plan.nodes}:
            raise UnknownGroup(group, f"is for a node {node}, and there is none")
        return plan

    def sized(self, copies: int) -> str:
        """Return the group for queues with so many copies, or as many as there are nodes: ``default``
        if queues that ask for none have as many, empty for one copy. It may be a group by name only:
        see `led_by` and `fallback`."""
        there = self._there_are()
        copies = min(copies, there)
        if copies == 1:
            return ""
        usual = min(self.of(DEFAULT_GROUP).replication_factor, there)
        return DEFAULT_GROUP if copies == usual else f"{SIZED}{copies}"

    def fallback(self, group: str) -> str:
        """Return the group for queues that `sized` wants in a group which no node can lead: one with at
        least as many copies that can begin on the first nodes, or ``default``."""
        members = len(self.of(DEFAULT_GROUP).members)
        for copies in range(copies_in(group) or members, members):
            name = f"{SIZED}{copies}"
            if self._can_begin(self._members_of(name)):
                return name
        more = self._copies(group) > members and self._can_begin(self._members_of(group))
        return group if more else DEFAULT_GROUP

    def led_by(self, node: str, group: str) -> str:
        """Return the group that has as many copies as queues in ``group``, ``default`` or one by size,
        want, and that a node should lead; empty if there can be none, as when its derived address is
        taken.

        It begins on the first nodes if those that it has there are still in the cluster, else on those
        of the earliest node set for which that is so, else on the first nodes all the same if a majority
        of those is there.
        """
        if (node, group) not in self._led:
            self._led[node, group] = self._found_for(node, group)
        return self._led[node, group]

    def _found_for(self, node: str, group: str) -> str:
        default = self.of(DEFAULT_GROUP)
        copies = min(copies_in(group) or default.replication_factor, self._there_are())
        size = f"{SIZED}{copies}-" if copies != len(default.members) else ""
        if node in self._initial:
            name = f"{size}{LED}{node}"
            if self._is_whole(name) and node in self._members_of(name):
                return name
        for identifier, node_set in self._history.earliest():
            if node in node_set.nodes and copies <= len(node_set.nodes):
                name = name_of_set(SetGroup(identifier, copies, node))
                members = _chosen(name, tuple(node_set.nodes), copies, node)
                if self._history.is_whole(node_set, members) and self._members_of(name):
                    return name
        for name in (f"{size}{LED}{node}", f"{LED}{node}"):
            members = self._members_of(name)
            if node in members and self._can_begin(members):
                return name
        return ""

    def _there_are(self) -> int:
        """Return the number of nodes on which groups may have copies now."""
        return sum(each.node in self._there for each in self.of(DEFAULT_GROUP).nodes)

    def _members_of(self, group: str) -> tuple[str, ...]:
        """Return the initial members of a group; none if there can be no such group."""
        if copies_in(group) and not self._copies(group) and group not in self._raft.groups:
            return ()  # more copies than there were nodes
        try:
            return tuple(each.node for each in self.of(group).members)
        except UnknownGroup:
            return ()

    def _is_whole(self, group: str) -> bool:
        """Return whether all initial members of a group on the first nodes are in the cluster, and have
        been from the beginning."""
        members = self._members_of(group)
        return bool(members) and all(self._began(node) for node in members)

    def _can_begin(self, members: tuple[str, ...]) -> bool:
        """Return whether a majority of a group's initial members on the first nodes are there now."""
        there = sum(self._began(node) for node in members)
        return there > len(members) // 2

    def _began(self, node: str) -> bool:
        """Return whether a node is in the cluster, and has been from the beginning."""
        return node in self._there and not self._history.times.get(node, 0)

    def _check_set(self, group: str, wanted: SetGroup) -> None:
        """Raise UnknownGroup for a group that cannot begin on its node set."""
        node_set = self._history.sets.get(wanted.node_set)
        if node_set is None:
            raise UnknownGroup(
                group, f"begins on nodes of {wanted.node_set}, of which this node has not heard yet"
            )
        if not 1 <= wanted.copies <= len(node_set.nodes) or wanted.leader not in node_set.nodes:
            raise UnknownGroup(group, f"is not a valid name: {wanted.node_set} has other nodes")

    def _copies(self, group: str) -> int:
        """Return the number of copies that the name of a group on the first nodes says; 0 if it is not
        such a name."""
        copies = copies_in(group)
        known = group in self._raft.groups
        return copies if not known and 2 <= copies <= len(self._initial) else 0

    def of_queue(self, queue: QueueSettings) -> GroupPlan:
        """Return the plan of the group that holds a queue, with the queue's own replication
        settings applied. Raises UnknownGroup.

        The members remain the group's, as its log holds all its queues. ``replication_factor`` is
        what the queue asks for.
        """
        group = queue.replication_group(self._raft)
        if group is None:
            raise UnknownGroup("", f"does not exist: queue {queue.name} is not replicated")
        plan, own = self.of(group), queue.replication
        in_sync = own.min_in_sync_replicas or plan.min_in_sync_replicas
        return replace(
            plan,
            distribution_mode=own.distribution_mode or plan.distribution_mode,
            sync_mode=plan.sync_mode if own.mode is None else own.mode == "sync",
            ack_timeout=own.ack_timeout or plan.ack_timeout,
            replication_factor=own.replication_factor or plan.replication_factor,
            min_in_sync_replicas=min(in_sync, len(plan.members)),
        )

    def _plan(self, group: str) -> GroupPlan:
        if not self._clustered:
            return self._planned(group)  # without ports nothing bounds the number of groups
        if group not in self._made:
            self._made[group] = self._planned(group)
        return self._made[group]

    def _planned(self, group: str) -> GroupPlan:
        raft, own = self._raft, self._settings.cluster.node_id
        section = raft.groups.get(group, _NOT_GIVEN)
        on_set = group_of_set(group)
        first, leader = self._first(group), preferred_leader(group)
        mirrored = is_mirrored(group)
        if on_set is None and not mirrored:
            factor = self._copies(group) or section.replication_factor or raft.replication_factor
            address, nodes = self._nodes(group, section, first)
            able = tuple(each.node for each in nodes if each.node in first)
            chosen = _chosen(group, able, factor, leader)
        else:
            factor = len(first) if on_set is None else on_set.copies
            chosen = _chosen(group, tuple(first), factor, leader)
            address, nodes = self._nodes(group, section, chosen)
        members = tuple(each for each in nodes if each.node in chosen)
        in_sync = section.min_in_sync_replicas or raft.min_in_sync_replicas
        timings = self._timings(group, section)
        return GroupPlan(
            name=group,
            bind_addr=address,
            data_dir=self._data_dir(group, section) if self._clustered else None,
            members=members,
            nodes=nodes,
            own=member_number(own) if own in chosen and self._is_same(own, first) else 0,
            write_policy="forward" if mirrored else raft.write_policy,
            distribution_mode="forward" if mirrored else raft.distribution_mode,
            sync_mode=mirrored
            or (raft.sync_mode if section.sync_mode is None else section.sync_mode),
            ack_timeout=self._mirrored_wait()
            if mirrored
            else section.ack_timeout or raft.ack_timeout,
            replication_factor=factor,
            min_in_sync_replicas=1 if mirrored else min(in_sync, len(members)),
            heartbeat_timeout=timings["heartbeat_timeout"],
            election_timeout=timings["election_timeout"],
            snapshot_interval=timings["snapshot_interval"],
            snapshot_threshold=timings["snapshot_threshold"],
        )

    def _mirrored_wait(self) -> float:
        """Return how long publishers to mirrored queues wait: for a mirror that is silent, or for another
        leader."""
        cluster = self._settings.cluster
        wait = cluster.net_ticktime + MIRROR_TAKES_OVER_SECONDS
        return max(wait, cluster.raft.ack_timeout)

    def _first(self, group: str) -> Mapping[str, int]:
        """Return the nodes on which a group may begin, each with how often it had joined by then."""
        on_set = group_of_set(group)
        if is_mirrored(group):
            # Nobody votes in it, so that a node which has left and come back cannot break a promise.
            times = self._history.times
            return {node: times.get(node, 0) for node in self._history.mirrors[group]}
        if on_set is None:
            return dict.fromkeys(self._initial, 0)
        return self._history.sets[on_set.node_set].nodes

    def _is_same(self, node: str, first: Mapping[str, int]) -> bool:
        """Return whether a node has not left the cluster since; one that has knows nothing of a group
        that may have begun with it."""
        return self._history.times.get(node, 0) == first[node]

    def _timings(self, group: str, section: RaftGroup) -> dict[str, Any]:
        """Return the group's timings; where queues override one, the smallest value applies."""
        queues = [
            queue.replication
            for queue in self._settings.queues
            if queue.replication_group(self._raft) == group
        ]
        found = {}
        for name in (
            "heartbeat_timeout",
            "election_timeout",
            "snapshot_interval",
            "snapshot_threshold",
        ):
            given = [value for each in queues if (value := getattr(each, name)) is not None]
            inherited = getattr(section, name) or getattr(self._raft, name)
            found[name] = min(given, default=inherited)
        return found

    def _data_dir(self, group: str, section: RaftGroup) -> str | None:
        if section.data_dir is not None or self._raft.data_dir is None:
            return section.data_dir
        base = self._raft.data_dir
        return base if group == DEFAULT_GROUP else f"{base.rstrip('/')}/groups/{group}"

    # --- addresses ---------------------------------------------------------------------------------------------------

    def _nodes(
        self, group: str, section: RaftGroup, needed: Collection[str]
    ) -> tuple[str, tuple[GroupMember, ...]]:
        """Return the group's address on this node, and every possible member, ascending by
        number. ``needed``: the nodes without whose addresses it cannot begin."""
        if not self._clustered:
            base = self._raft.bind_addr if group == DEFAULT_GROUP else ""
            address, peers = section.bind_addr or base, dict[str, str]()
        elif not section.enabled and not section.peers:
            raise UnknownGroup(
                group, "is not enabled on this node, and its section names no peers that host it"
            )
        else:
            address = self._own_address(group) if section.enabled else ""
            peers = dict(section.peers) or self._derived_peers(group, address, needed)
        addresses = dict(peers)
        if section.enabled:
            addresses[self._settings.cluster.node_id] = address
        named = group_of_set(group) is not None or is_mirrored(group)
        if named and (missing := {*needed} - addresses.keys()):
            raise UnknownGroup(group, f"has no address on {', '.join(sorted(missing))}")
        nodes = [GroupMember(node, member_number(node), at) for node, at in addresses.items()]
        return address, tuple(sorted(nodes, key=lambda each: each.number))

    def _own_address(self, group: str) -> str:
        raft = self._raft
        given = raft.groups.get(group, _NOT_GIVEN).bind_addr
        if given is not None or group == DEFAULT_GROUP:
            return given or raft.bind_addr
        if group not in self._derived:
            try:
                address = shifted(raft.bind_addr, derived_offset(group))
            except ValueError:
                raise UnknownGroup(
                    group,
                    f"would have a port {derived_offset(group)} above that of cluster.raft.bind_addr,"
                    f" {raft.bind_addr}, which is out of range: give it a bind_addr in cluster.raft.groups",
                ) from None
            listen_address = _derived_address(group, address)
            if found := clash(listen_address, self._taken):
                raise UnknownGroup(
                    group,
                    f"has the derived address {address}, and {found}:"
                    f" give it a bind_addr in cluster.raft.groups",
                )
            self._taken.append(listen_address)
            self._derived[group] = address
        return self._derived[group]

    def _derived_peers(self, group: str, address: str, needed: Collection[str]) -> dict[str, str]:
        """Return the addresses on the other nodes: shifted from the default group's as this node's
        own is."""
        raft = self._raft
        if group == DEFAULT_GROUP:
            return raft.peers
        ports = split_address(address)[1] - split_address(raft.bind_addr)[1]
        derived = {}
        for node, base in raft.peers.items():
            try:
                derived[node] = self._derived_peer(group, node, base, ports)
            except UnknownGroup:
                if node in needed:
                    raise
                # A node that has joined gets no copy of this group; the others go on with it.
        return derived

    def _derived_peer(self, group: str, node: str, base: str, ports: int) -> str:
        """Return a group's address on another node. Raises UnknownGroup if there is none."""
        try:
            address = shifted(base, ports)
        except ValueError:
            raise UnknownGroup(
                group,
                f"would have ports {ports} from those of cluster.raft.peers, which are out of range:"
                " name its peers in cluster.raft.groups",
            ) from None
        listen_address = ListenAddress(f"the derived address of group {group} on {node}", address)
        if found := clash(listen_address, self._taken_by_others):
            raise UnknownGroup(
                group,
                f"has the derived address {address} on {node}, and {found}:"
                f" give it a bind_addr and peers in cluster.raft.groups",
            )
        return address


def _derived_address(group: str, address: str) -> ListenAddress:
    return ListenAddress(f"the derived address of group {group}", address)


def derived_offset(group: str) -> int:
    """Return the distance of a group's derived port from that of cluster.raft.bind_addr, equal on
    all nodes."""
    return 1 + zlib.crc32(group.encode()) % DERIVED_PORTS


def _initial(settings: Settings) -> tuple[frozenset[str], frozenset[str]]:
    """Return the nodes that the cluster began with, and those that it has now."""
    cluster = settings.cluster
    there = frozenset((cluster.node_id, *cluster.transport.peers))
    return frozenset(cluster.initial_nodes or {*there, *cluster.raft.peers}), there


def _chosen(group: str, nodes: tuple[str, ...], copies: int, leader: str) -> tuple[str, ...]:
    """Choose ``copies`` of the nodes, ``leader`` among them; every node chooses the same ones, whatever
    the addresses are."""

    def weight(node: str) -> tuple[bool, bytes]:
        return node == leader, hashlib.sha256(f"{group}\0{node}".encode()).digest()

    return tuple(sorted(nodes, key=weight, reverse=True)[:copies])
