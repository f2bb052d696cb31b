"""Client of etcd, over gRPC.

Requests go to one endpoint until it fails, then to the next. A request that may have been carried
out is not repeated here: only its caller knows whether that would do harm.

New certificates are for new connections, which all later requests use; what is under way goes on over
the connection that it has, which is closed afterwards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from fluxmq.control.etcd import messages
from fluxmq.control.etcd.messages import (
    Compare,
    EtcdTransaction,
    Operation,
    TransactionResult,
    Watched,
)
from fluxmq.model.errors import FluxmqError
from fluxmq.settings.clustering import ClusterSettings, address_of, reachable

REQUEST_SECONDS: Final = 2.0
"""Time for an answer: a new leader among the members is elected in about one second."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Size of an answer: `retained.PAGE_KEYS` values of the size that the server accepts at most."""
KEEP_ALIVE_MS: Final = 2000
"""Interval of HTTP/2's own keep-alive, by which a dead endpoint is noticed under a watch."""
RESOLVE_MS: Final = 1000
"""Minimum time between two resolutions of an endpoint's name, which is resolved again when it cannot
be reached: its address may have changed."""

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEP_ALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEP_ALIVE_MS),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS),
    ("grpc.enable_http_proxy", 0),
)

_OUT_OF_REACH: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""The member is not there, or knows no leader: it cannot reach the majority of the members."""

Decoded = TypeVar("Decoded")


_WITH_LEADER: Final = (("hasleader", "true"),)
"""Has a member end a watch when it has lost the others: its changes would be missed in silence."""


class EtcdError(FluxmqError):
    """A request failed, or got no answer in time."""


class UnreachableError(EtcdError):
    """No member answered, or those that did have no majority."""


class CompactedError(EtcdError):
    """A watch began at a revision whose changes are no longer there."""


class EtcdClient:
    """Connection to a cluster of etcd. Lives on one event loop.

    ``endpoints``: addresses, "host:port"; ``credentials``: None for plaintext; ``name``: the name
    in the servers' certificates, if it is not their host name.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        credentials: grpc.ChannelCredentials | None = None,
        name: str = "",
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._options: list[tuple[str, Any]] = list(_CHANNEL_OPTIONS)
        if name:
            self._options.append(("grpc.ssl_target_name_override", name))
        self._channels = self._opened(credentials)
        self._current = 0
        self._calls: Counter[grpc.aio.Channel] = Counter()
        """Requests and watches under way, by channel."""
        self._former: set[grpc.aio.Channel] = set()
        """Channels with former certificates on which there are some."""
        self._closing: set[asyncio.Task[None]] = set()

    def _opened(self, credentials: grpc.ChannelCredentials | None) -> list[grpc.aio.Channel]:
        return [
            grpc.aio.insecure_channel(each, self._options)
            if credentials is None
            else grpc.aio.secure_channel(each, credentials, self._options)
            for each in self._endpoints
        ]

    @classmethod
    def of(cls, cluster: ClusterSettings) -> EtcdClient:
        """Return a client of the member or the endpoints of the settings. Raises EtcdError for a
        certificate that cannot be read."""
        etcd = cluster.etcd
        assert etcd is not None, "the settings ask for etcd"
        endpoints = [address_of(each) for each in etcd.endpoints]
        endpoints = endpoints or [reachable(etcd.client_addr)]
        credentials = credentials_of(cluster)
        named = credentials is None or bool(etcd.endpoints)
        return cls(endpoints, credentials, "" if named else cluster.node_id)

    def renew(self, credentials: grpc.ChannelCredentials) -> None:
        """Use other certificates for what is requested from now on."""
        before, self._channels = self._channels, self._opened(credentials)
        for channel in before:
            if self._calls[channel]:
                self._former.add(channel)
            else:
                self._close(channel)

    def _close(self, channel: grpc.aio.Channel) -> None:
        task = asyncio.get_running_loop().create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    @contextmanager
    def _using(self, channel: grpc.aio.Channel) -> Iterator[None]:
        self._calls[channel] += 1
        try:
            yield
        finally:
            self._calls[channel] -= 1
            if not self._calls[channel]:
                del self._calls[channel]
                if channel in self._former:
                    self._former.remove(channel)
                    self._close(channel)

    async def close(self) -> None:
        """Close all connections."""
        channels = (*self._channels, *self._former)
        await asyncio.gather(*(channel.close() for channel in channels), *self._closing)

    async def transact(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TransactionResult:
        """Carry out ``success`` if all comparisons hold, else ``failure``. Raises EtcdError, after
        which the transaction may have been carried out."""
        request = messages.transaction(EtcdTransaction(compares, success, failure))
        return await self._ask(messages.TRANSACT, request, messages.result_of)

    async def compact(self, revision: int) -> None:
        """Drop what keys were before a revision. Raises EtcdError, also if that has been done."""
        await self._ask(messages.COMPACT, messages.compaction(revision), messages.revision_of)

    async def grant(self, seconds: int) -> int:
        """Return a new lease, which lasts that long without a keep-alive. Raises EtcdError."""
        lease, _ = await self._ask(messages.GRANT, messages.grant(seconds), messages.lease_of)
        return lease

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys. Raises EtcdError, also if it is over."""
        await self._ask(messages.REVOKE, messages.lease_request(lease), messages.revision_of)

    async def members(self) -> tuple[messages.EtcdMember, ...]:
        """Return the members. Raises EtcdError."""
        return await self._ask(messages.MEMBERS, b"", messages.members_of)

    async def add_member(self, url: str) -> None:
        """Admit a member, at this address for the others. Raises EtcdError."""
        await self._ask(messages.ADD_MEMBER, messages.new_member(url), messages.revision_of)

    async def remove_member(self, number: int) -> None:
        """Remove a member. Raises EtcdError, also if too few others run."""
        request = messages.member_request(number)
        await self._ask(messages.REMOVE_MEMBER, request, messages.revision_of)

    async def keep_alive(self, lease: int) -> tuple[int, int]:
        """Prolong a lease; return its remaining seconds, 0 if it is over, and the store's revision.
        Raises EtcdError."""
        async with aclosing(self.keep_all_alive((lease,))) as answers:
            return await anext(answers)

    async def keep_all_alive(self, leases: Sequence[int]) -> AsyncGenerator[tuple[int, int], None]:
        """Prolong leases, one after the other; yield what `keep_alive` returns for each. Raises
        EtcdError, after which none of those left has been prolonged for certain."""
        channel = self._channels[self._current]
        with self._using(channel):
            call = channel.stream_stream(messages.KEEP_ALIVE)(timeout=REQUEST_SECONDS)
            try:
                for lease in leases:
                    await call.write(messages.lease_request(lease))
                for _ in leases:
                    answer = await call.read()
                    if not isinstance(answer, bytes):
                        raise EtcdError("the server has ended the keep-alive")
                    yield messages.lease_of(answer)[1], messages.revision_of(answer)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ValueError) as problem:
                self._next(channel)
                raise EtcdError(_reason(problem)) from problem
            finally:
                call.cancel()

    async def watch(self, key: bytes, end: bytes, start: int) -> AsyncGenerator[Watched, None]:
        """Yield the changes of a key, or of all from ``key`` up to ``end``, from a revision on.

        Raises CompactedError, or EtcdError when the watch breaks: begin again behind the revision
        of the last change that was received.
        """
        channel = self._channels[self._current]
        with self._using(channel):
            call = channel.stream_stream(messages.WATCH)(metadata=_WITH_LEADER)
            try:
                await call.write(messages.watch(key, end, start))
                while isinstance(answer := await call.read(), bytes):
                    found = messages.watched_of(answer)
                    if found.compacted:
                        raise CompactedError(
                            f"changes before {found.compacted} have been compacted"
                        )
                    if found.ended:
                        raise EtcdError(found.ended)
                    yield found
                raise EtcdError("the server has ended the watch")
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ValueError) as problem:
                self._next(channel)
                raise EtcdError(_reason(problem)) from problem
            finally:
                call.cancel()

    async def _ask(
        self, method: str, request: bytes, decode: Callable[[bytes], Decoded]
    ) -> Decoded:
        channel = self._channels[self._current]
        try:
            with self._using(channel):
                answer = await channel.unary_unary(method)(request, timeout=REQUEST_SECONDS)
                assert isinstance(answer, bytes), "no deserializer was given"
                return decode(answer)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, ValueError) as problem:
            self._next(channel)
            code = problem.code() if isinstance(problem, grpc.aio.AioRpcError) else None
            failure = UnreachableError if code in _OUT_OF_REACH else EtcdError
            raise failure(_reason(problem)) from problem

    def _next(self, failed: grpc.aio.Channel) -> None:
        """Use the next endpoint, unless another request has seen to it."""
        if self._channels[self._current] is failed:
            self._current = (self._current + 1) % len(self._channels)


def credentials_of(cluster: ClusterSettings) -> grpc.ChannelCredentials | None:
    """Return the certificates of the settings, read anew; None without TLS. Raises EtcdError for
    files that cannot be read."""
    transport = cluster.transport
    if not transport.tls_enabled:
        return None
    files = transport.tls_ca_file, transport.tls_key_file, transport.tls_cert_file
    try:
        authority, key, certificate = (Path(path or "").read_bytes() for path in files)
    except OSError as problem:
        raise EtcdError(f"cluster.transport: {problem}") from problem
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _reason(problem: Exception) -> str:
    if isinstance(problem, grpc.aio.AioRpcError):
        return str(problem.details() or problem.code().name)
    return str(problem) or type(problem).__name__
