"""Serves fluxmqctl's lists, and forwards its commands about queues, connections and sessions.

The topology is answered from here. Shards supply figures of queues, connections, channels and
consumers, page by page; those that do not answer in time are named instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson
from msgspec.structs import replace

from fluxmq.control.columns import LISTS, QUEUE_MIRRORS, QUEUE_REPLICAS, QUEUE_STATIC
from fluxmq.control.mirrors import MirrorStates, add_mirrors, not_mirrored
from fluxmq.control.other_nodes import ControlOfNodes
from fluxmq.control.peers import Peer, PeerError, RequestError, answers_of, forwarded
from fluxmq.control.queue_columns import QueueColumns, placed, policy_name, static_reader
from fluxmq.ipc.clusters import RaftListing
from fluxmq.ipc.messages import (
    ERROR_AWAY,
    ERROR_FAILED,
    ERROR_INVALID,
    ERROR_NOT_FOUND,
    ERROR_UNKNOWN_KIND,
    Body,
    ControlMessage,
    MessageError,
)
from fluxmq.ipc.row_messages import (
    CLOSE_CONNECTIONS,
    CLOSE_SESSION,
    DELETE_QUEUE,
    LIST,
    POSITION,
    PURGE_QUEUE,
    QUEUES,
    RETAINED,
    ROWS,
    SHARD_LISTS,
    AffectedCount,
    CloseConnections,
    CloseSession,
    Listed,
    ListRequest,
    QueueExtent,
    QueueRequest,
    RowsPage,
    RowsRequest,
    TableRow,
    page_of,
    plain,
)
from fluxmq.logs import get_logger
from fluxmq.routing.topology.effective import Explained, explain, policy_of
from fluxmq.routing.topology.parameters import RuntimeParameter, parameters
from fluxmq.routing.topology.records import (
    Binding,
    Exchange,
    GlobalParameter,
    Policy,
    QueueRecord,
    UserLimits,
    Vhost,
)
from fluxmq.routing.topology.topology import Topology, global_parameters
from fluxmq.settings.group_names import is_mirrored

_log = get_logger(__name__)

KINDS: Final = frozenset({LIST, CLOSE_CONNECTIONS, CLOSE_SESSION, PURGE_QUEUE, DELETE_QUEUE})

ROWS_SECONDS: Final = 2.0
"""Time to wait for one page of a shard."""
NODE_SECONDS: Final = 4.0
"""Time to wait for one page of another node: less than fluxmqctl waits."""
_MIRROR_DEPENDENT: Final = frozenset((*QUEUE_MIRRORS, "leader", "pid"))
"""Columns of queues that depend on whether they are mirrored."""
QUEUES_AT_ONCE: Final = 500
"""Queues that shards are asked about at once: their rows fit into a page."""
REQUEST_SECONDS: Final = 30.0
"""Time for a shard to purge or delete a queue, or to close connections or a session."""


class Listings:
    """Serves lists on control's loop. `topology` returns the one in force, `shards` the connected
    shards, `replicas` those of a cluster's groups; None on a node without a cluster. `node`: this
    one's name; `others`: the other nodes, which have connections of their own; `mirrors`: the state of
    mirrored queues."""

    def __init__(
        self,
        topology: Callable[[], Topology],
        shards: Callable[[], list[Peer]],
        replicas: Callable[[], Awaitable[RaftListing]] | None = None,
        node: str = "",
        others: ControlOfNodes | None = None,
        mirrors: MirrorStates = not_mirrored,
    ) -> None:
        self._topology = topology
        self._shards = shards
        self._replicas = replicas
        self._node = node
        self._mirrors = mirrors
        self.columns = QueueColumns(topology, shards, replicas, node, mirrors)
        self._others = others or ControlOfNodes((), shards)

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a request. Raises RequestError or MessageError."""
        match message.kind:
            case "list":
                return (await self._list(ListRequest.from_body(message.body))).to_body()
            case "close_connections":
                return await self._close(CloseConnections.from_body(message.body))
            case "close_session":
                return await self._end_session(CloseSession.from_body(message.body))
            case "purge_queue" | "delete_queue":
                return await self._order(message.kind, QueueRequest.from_body(message.body))
        raise RequestError(ERROR_UNKNOWN_KIND, f"{message.kind} is not supported here")

    # Lists

    async def _list(self, wanted: ListRequest) -> Listed:
        listing = LISTS.get(wanted.what)
        if listing is None:
            raise RequestError(ERROR_INVALID, f"there is no list of {wanted.what}")
        for column in wanted.columns:
            if column not in listing.columns:
                raise RequestError(ERROR_INVALID, f"{wanted.what} have no column {column!r}")
        if wanted.vhost is not None and self._topology().vhost(wanted.vhost) is None:
            raise RequestError(ERROR_NOT_FOUND, f"virtual host {wanted.vhost!r} does not exist")
        if wanted.what == QUEUES:
            return await self._queues(wanted)
        if wanted.what in SHARD_LISTS:
            return await self._of_nodes(wanted)
        topology = self._topology()
        rows, place = _next_page(_records(topology, wanted), wanted.place)
        return Listed(tuple(_cut(row, wanted.columns) for row in rows), place)

    async def _queues(self, wanted: ListRequest) -> Listed:
        """Return a page of the topology's queues, with figures of the shards that hold them."""
        topology = self._topology()
        row_of = _queue_rows(topology, wanted.columns)
        queues = ((row_of, each) for each in topology.queues(wanted.vhost))
        found, place = _next_page(queues, wanted.place)
        rows = {(row["vhost"], row["name"]): row for row in found}
        missing = await self._complete(topology, rows, wanted.columns)
        cut = tuple(_cut(row, wanted.columns) for row in rows.values())
        return Listed(cut, place, missing)

    async def queue_rows(self, queues: Sequence[QueueRecord]) -> tuple[list[TableRow], list[str]]:
        """Return the rows of these queues with all columns, and the shards that did not answer."""
        topology, found = self._topology(), list[TableRow]()
        row_of = _queue_rows(topology, QUEUE_STATIC)
        missing: set[str] = set()
        for begin in range(0, len(queues), QUEUES_AT_ONCE):
            part = queues[begin : begin + QUEUES_AT_ONCE]
            rows = {(each.vhost, each.name): row_of(each) for each in part}
            missing.update(await self._complete(topology, rows, LISTS[QUEUES].columns))
            found += rows.values()
        return found, sorted(missing)

    async def positions(self, queues: Sequence[QueueRecord]) -> dict[tuple[str, str], QueueExtent]:
        """Return how far queues have got, by virtual host and name, as far as shards of this node say."""
        found: dict[tuple[str, str], QueueExtent] = {}
        for begin in range(0, len(queues), QUEUES_AT_ONCE):
            part = queues[begin : begin + QUEUES_AT_ONCE]
            rows: dict[tuple[str, str], TableRow] = {(each.vhost, each.name): {} for each in part}
            await self._complete(self._topology(), rows, (POSITION,))
            for key, row in rows.items():
                if row.get(POSITION):
                    found[key] = QueueExtent(*row[POSITION])
        return found

    def without_mirrors(self) -> list[QueueRecord]:
        """Return the mirrored queues that this node leads while no synchronised mirror is online."""
        found = []
        for queue in self._topology().queues():
            state = self._mirrors(queue) if is_mirrored(queue.group) else None
            if state is not None and state.leader == self._node and not state.synchronised:
                found.append(queue)
        return found

    async def _complete(
        self, topology: Topology, rows: dict[tuple[str, str], TableRow], columns: Sequence[str]
    ) -> tuple[str, ...]:
        """Add to queues' rows the columns that shards have; return the shards that did not answer."""
        ours = (*QUEUE_STATIC, *QUEUE_MIRRORS)
        theirs = tuple(column for column in columns if column not in ours)
        missing: tuple[str, ...] = ()
        if theirs and rows:
            question = RowsRequest(QUEUES, ("vhost", "name", *theirs), names=tuple(rows))
            shards = self._shards()
            answers = await _pages(shards, question)
            missing = tuple(
                shard.name for shard, answer in zip(shards, answers, strict=True) if answer is None
            )
            for answer in answers:
                for told in answer.rows if answer is not None else ():
                    row = rows.get((str(told.get("vhost")), str(told.get("name"))))
                    if row is not None:
                        row.update((column, told.get(column)) for column in theirs)
        if self._replicas is not None and not QUEUE_REPLICAS.isdisjoint(theirs) and rows:
            groups = {row.group: row for row in (await self._replicas()).groups}
            for key, row in rows.items():
                queue = topology.queue(*key)
                if queue is not None:
                    row.update(placed(queue, groups, self._node))
        if not _MIRROR_DEPENDENT.isdisjoint(columns):
            for key, row in rows.items():
                queue = topology.queue(*key)
                if queue is not None:
                    add_mirrors(row, queue, self._mirrors(queue))
        return tuple(sorted(missing))

    async def _of_nodes(self, wanted: ListRequest) -> Listed:
        """Return the next page of the nodes' rows, one node after the other, this one first."""
        if wanted.here or wanted.what == RETAINED:
            return await self._of_shards(wanted)
        number, *place = wanted.place or (0,)
        if number > len(self._others.nodes):
            return Listed(())
        question = replace(wanted, place=tuple(place), here=True)
        if number == 0:
            listed = await self._of_shards(question)
        else:
            node = self._others.nodes[number - 1]
            try:
                answer = await self._others.ask(node, LIST, question.to_body(), NODE_SECONDS)
                listed = Listed.from_body(answer)
                missing = tuple(f"{each} of {node}" for each in listed.missing)
                listed = replace(listed, missing=missing)
            except (RequestError, MessageError) as problem:
                _log.debug("no list from another node: %s", problem)
                listed = Listed((), (), (node,))
        if listed.place:
            return replace(listed, place=(number, *listed.place))
        return replace(listed, place=(number + 1,) if number < len(self._others.nodes) else ())

    async def _of_shards(self, wanted: ListRequest) -> Listed:
        """Return the next page of the shards' rows, one shard after the other."""
        index, after = (*wanted.place, 0, 0)[:2]
        shards = {_index(shard): shard for shard in self._shards()}
        left = sorted(number for number in shards if number >= index)
        if not left:
            return Listed(())
        shard = shards[left[0]]
        columns = (column for column in wanted.columns if column != "node")
        if wanted.what == RETAINED:
            del left[1:]  # every shard has all of them, and what all nodes share, every node
        names = ((wanted.vhost or "", wanted.subject),) if wanted.subject else ()
        after = after if left[0] == index else 0
        question = RowsRequest(wanted.what, ("vhost", *columns), after, names)
        (page,) = await _pages([shard], question)
        if page is not None and page.following >= 0:
            place: tuple[int, ...] = (left[0], page.following)
        else:
            place = (left[1], 0) if len(left) > 1 else ()
        if page is None:
            return Listed((), place, (shard.name,))
        rows = (
            row
            for row in page.rows
            if wanted.vhost is None or row.get("vhost", wanted.vhost) == wanted.vhost
        )
        own = ({**row, "node": self._node} for row in rows)
        return Listed(tuple(_cut(row, wanted.columns) for row in own), place)

    # Commands

    async def _close(self, wanted: CloseConnections) -> Body:
        done = await self._on_nodes(CLOSE_CONNECTIONS, wanted, wanted.pid is not None)
        if wanted.pid is not None and done.count == 0 and not wanted.here:
            raise RequestError(
                ERROR_NOT_FOUND, f"there is no connection {wanted.pid!r}{_beyond(done.missing)}"
            )
        return done.to_body()

    async def _end_session(self, wanted: CloseSession) -> Body:
        done = await self._on_nodes(CLOSE_SESSION, wanted, False)
        if done.count == 0 and not wanted.here:
            raise RequestError(
                ERROR_NOT_FOUND,
                f"there is no session of {wanted.client_id!r}{_beyond(done.missing)}",
            )
        return done.to_body()

    async def _on_nodes(
        self, kind: str, wanted: CloseConnections | CloseSession, single: bool
    ) -> AffectedCount:
        """Carry out a command on all nodes, unless it is for this one; `single`: it concerns one
        connection, so that others are not asked once it is found. Raises RequestError."""
        count = await self._all(kind, wanted.to_body())
        if wanted.here or (single and count):
            return AffectedCount(count)
        elsewhere = replace(wanted, here=True).to_body()
        answers = await self._others.ask_all(kind, elsewhere, REQUEST_SECONDS)
        missing = []
        for node, answer in zip(self._others.nodes, answers, strict=True):
            if not isinstance(answer, RequestError):
                count += AffectedCount.from_body(answer).count
            elif answer.code == ERROR_AWAY:
                missing.append(node)
            else:
                raise answer
        return AffectedCount(count, () if single and count else tuple(missing))

    async def _all(self, kind: str, body: dict[str, object]) -> int:
        """Send a command to all shards and return the sum of their counts. Raises RequestError."""
        shards = self._shards()
        bodies = await asyncio.gather(
            *(shard.ask(kind, body, REQUEST_SECONDS) for shard in shards), return_exceptions=True
        )
        count, failed = 0, []
        for shard, answer in zip(shards, bodies, strict=True):
            if isinstance(answer, PeerError | TimeoutError):
                failed.append(f"{shard.name}: {str(answer) or 'no answer in time'}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                count += AffectedCount.from_body(answer).count
        if failed:
            raise RequestError(ERROR_FAILED, "; ".join(failed))
        return count

    async def _order(self, kind: str, request: QueueRequest) -> Body:
        """Have a shard purge or delete a queue; any can, wherever the queue is."""
        if self._topology().queue(request.vhost, request.name) is None:
            raise RequestError(
                ERROR_NOT_FOUND, f"no queue '{request.name}' in vhost '{request.vhost}'"
            )
        shards = sorted(self._shards(), key=_index)
        if not shards:
            raise RequestError(ERROR_FAILED, "no shard is connected")
        body = await forwarded(shards[0], kind, request.to_body(), REQUEST_SECONDS)
        return AffectedCount.from_body(body).to_body()


Record = tuple[Callable[[Any], TableRow], Any]
"""A row's builder and its argument: each page iterates anew, but builds no rows before its
start."""


def _next_page(
    records: Iterable[Record], place: tuple[int, ...]
) -> tuple[tuple[TableRow, ...], tuple[int, ...]]:
    """Return the rows from `place` on, and where to continue."""
    begin = place[0] if place else 0
    page = page_of((row_of(each) for row_of, each in islice(records, begin, None)), 0)
    return page.rows, () if page.following < 0 else (begin + page.following,)


def _records(topology: Topology, wanted: ListRequest) -> Iterator[Record]:
    """Yield the records behind a list of the topology."""
    if wanted.what == "vhosts":
        yield from ((_vhost_row, each) for each in topology.vhosts())
        return
    if wanted.what == "user_limits":
        of_users = topology.user_limits()
        wanted_ones = (each for each in of_users if wanted.subject in ("", each.user))
        yield from ((_user_limits_row, each) for each in wanted_ones)
        return
    if wanted.what == "global_parameters":
        of_cluster = global_parameters(topology)
        yield from ((_global_parameter_row, of_cluster[name]) for name in sorted(of_cluster))
        return
    vhosts = [each.name for each in topology.vhosts()] if wanted.vhost is None else [wanted.vhost]
    for vhost in vhosts:
        match wanted.what:
            case "exchanges":
                row_of = partial(_exchange_row, topology)
                yield from ((row_of, each) for each in topology.exchanges(vhost))
            case "bindings":
                yield from ((_binding_row, each) for each in topology.implied_bindings(vhost))
                yield from ((_binding_row, each) for each in topology.bindings(vhost))
            case "policies" | "operator_policies":
                operator = wanted.what == "operator_policies"
                found = topology.policies(vhost)
                yield from ((_policy_row, each) for each in found if each.operator is operator)
            case "vhost_limits":
                host = topology.vhost(vhost)
                if host is not None and host.limits:
                    yield _limits_row, host
            case "parameters":
                yield from ((_parameter_row, each) for each in parameters(topology, [vhost]))
            case "explained":
                yield from ((_explained_row, each) for each in _explained(topology, vhost, wanted))


async def _pages(shards: Sequence[Peer], wanted: RowsRequest) -> list[RowsPage | None]:
    return await answers_of(shards, ROWS, wanted.to_body(), ROWS_SECONDS, RowsPage)


def _beyond(missing: tuple[str, ...]) -> str:
    """Return the end of a sentence about nodes that cannot be reached."""
    return f", but {', '.join(missing)} cannot be reached" if missing else ""


def _index(shard: Peer) -> int:
    assert shard.hello is not None, "a shard said hello"
    return shard.hello.index


def _cut(row: TableRow, columns: tuple[str, ...]) -> TableRow:
    return {column: row.get(column) for column in columns}


def _columns(record: object, *names: str) -> TableRow:
    """Return the columns that are named as a record's fields."""
    return {name: plain(getattr(record, name)) for name in names}


def _queue_rows(topology: Topology, columns: Iterable[str]) -> Callable[[QueueRecord], TableRow]:
    """Return the builder of rows with those of the columns that the topology has, names included."""
    wanted = {"name", "vhost", *columns}
    readers = {each: static_reader(topology, each) for each in QUEUE_STATIC if each in wanted}
    return lambda queue: {column: read(queue) for column, read in readers.items()}


def _exchange_row(topology: Topology, exchange: Exchange) -> TableRow:
    return {
        **_columns(exchange, "name", "type", "durable", "auto_delete", "internal", "arguments"),
        "policy": policy_name(policy_of(topology, exchange)),
    }


def _binding_row(binding: Binding) -> TableRow:
    return {
        "source_name": binding.source,
        "source_kind": "exchange",
        "destination_name": binding.destination,
        **_columns(binding, "destination_kind", "routing_key", "arguments"),
    }


def _policy_row(policy: Policy) -> TableRow:
    return {
        **_columns(policy, "vhost", "name", "pattern", "definition", "priority"),
        "apply-to": policy.apply_to,
    }


def _vhost_row(vhost: Vhost) -> TableRow:
    return _columns(vhost, "name", "description", "tags", "default_queue_type")


def _limits_row(vhost: Vhost) -> TableRow:
    return {"vhost": vhost.name, "limits": plain(vhost.limits)}


def _parameter_row(parameter: RuntimeParameter) -> TableRow:
    value = orjson.dumps(plain(parameter.value)).decode()
    return {"component": parameter.component, "name": parameter.name, "value": value}


def _global_parameter_row(parameter: GlobalParameter) -> TableRow:
    return {"name": parameter.name, "value": parameter.value}


def _user_limits_row(limits: UserLimits) -> TableRow:
    return {"user": limits.user, "limits": plain(limits.limits)}


def _explained(topology: Topology, vhost: str, wanted: ListRequest) -> list[Explained]:
    """Return every setting of a queue or exchange; the queue's when both have the name."""
    name = wanted.subject
    found: QueueRecord | Exchange | None = topology.queue(vhost, name) or topology.exchange(
        vhost, name
    )
    if found is None:
        raise RequestError(ERROR_NOT_FOUND, f"no queue or exchange '{name}' in vhost '{vhost}'")
    return explain(topology, found)


def _explained_row(explained: Explained) -> TableRow:
    return dict(explained._asdict())
