"""Who a client is: anonymous, a user with a password or SCRAM, or the holder of a certificate.

Users come from the control process as whole snapshots with a revision. Passwords are verified by a few
threads (argon2id takes tens of milliseconds and releases the interpreter lock); the number waiting is
bounded, beyond it clients are told that the server is busy. An unknown user costs what a known one does.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address

from fluxmq.auth.credentials import SALT_BYTES, HashParameters, PasswordVerifier
from fluxmq.auth.policy import Policy
from fluxmq.auth.scram import ServerExchange, StoredKeys
from fluxmq.auth.users import User
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.sessions.mqtt.ports import Authenticated
from fluxmq.sessions.mqtt.session import Client
from fluxmq.settings.schema import Auth

NONCE_BYTES = 18
"""Random bytes of the server's part of a SCRAM nonce: 24 characters of base64."""
SECRET_BYTES = 32
REMEMBERED_MAX = 10_000
"""Users whose last verified password is known again without the work of argon2id, which costs 100 ms of a core: clients
that connect for every message would do nothing else. The digest is keyed with a secret of this process alone."""
VERIFY_NICENESS = 5
"""By how much the verifying threads, which share their core with the loop, come behind it: a third of its
weight, so that a flood of logins does not slow messages down, nor messages keep everybody out."""
ANONYMOUS = Authenticated(0)


class Authentication:
    """Checks credentials for one shard."""

    def __init__(self, settings: Auth, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._secret = os.urandom(SECRET_BYTES)
        self._digest_key = os.urandom(SECRET_BYTES)
        self._verified_before: dict[str, tuple[str, bytes]] = {}
        """By user: the hash that a password was verified against, and that password's digest."""
        self._users: dict[str, User] = {}
        self.revision = -1
        self.pending = 0
        self.results: Counter[tuple[str, str]] = Counter()
        self._pool: ThreadPoolExecutor | None = None
        self.configure(settings)

    def configure(self, settings: Auth) -> None:
        """Take new settings; verifications under way end under the old ones."""
        self.settings = settings
        self._anonymous: Policy | None = None
        """The policy of all anonymous clients, where it does not depend on the client."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        self._pool = ThreadPoolExecutor(
            settings.verify_threads, "verify", initializer=partial(os.nice, VERIFY_NICENESS)
        )
        cost = settings.argon2
        self._verifier = PasswordVerifier(
            HashParameters(cost.time_cost, cost.memory_cost // 1024, cost.parallelism),
            os.urandom(SALT_BYTES),
        )

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def set_users(self, revision: int, users: tuple[User, ...]) -> set[str]:
        """Take a snapshot; returns the names whose record changed or went."""
        fresh = {user.name: user for user in users}
        changed = {
            name
            for name in self._users.keys() | fresh.keys()
            if self._users.get(name) != fresh.get(name)
        }
        self._users = fresh
        self.revision = revision
        return changed

    def users(self) -> list[User]:
        """The snapshot in force."""
        return list(self._users.values())

    def record(self, name: str) -> User | None:
        """A user's record, enabled or not."""
        return self._users.get(name)

    def user(self, name: str) -> User | None:
        """A user who may log in."""
        user = self._users.get(name)
        return user if user is not None and user.enabled else None

    def check(
        self, client: Client, connect: Connect, done: Callable[[Authenticated], None]
    ) -> None:
        """Find out who the client is; ``done`` is called now or when a password was verified."""
        if connect.username is None:
            done(self.without_name(client))
            return
        self.verify(connect.username, connect.password or b"", client.peer, done)

    def verify(
        self,
        username: str,
        password: bytes,
        peer: str,
        done: Callable[[Authenticated], None],
    ) -> None:
        """Find out whether a password is a user's; ``done`` is called now or when it was verified.

        A user that is let in from this machine only is nobody elsewhere, and costs what an unknown one does.
        """
        if self.revision < 0:
            # Control has not told yet who there is: try again, rather than "wrong password".
            self.results["password", "busy"] += 1
            done(Authenticated(Reason.SERVER_UNAVAILABLE))
            return
        if self.pending >= self.settings.max_pending_verifications:
            self.results["password", "busy"] += 1
            done(Authenticated(Reason.SERVER_BUSY))
            return
        reachable = self.reachable(username, peer)
        if reachable and self._remembers(username, password):
            self.results["password", "success"] += 1
            done(Authenticated(0, username))
            return
        self._verify(username, password, reachable, done)

    def _remembers(self, username: str, password: bytes) -> bool:
        """Whether just this password was verified against the user's hash as it is now."""
        user = self.user(username)
        known = self._verified_before.get(username)
        if user is None or known is None or known[0] != user.hash:
            return False
        return hmac.compare_digest(known[1], self._digest(password))

    def _digest(self, password: bytes) -> bytes:
        """What is kept of a password that was verified: useless without this process's secret."""
        return hmac.digest(self._digest_key, password, "sha256")

    def reachable(self, username: str, peer: str) -> bool:
        """Whether a user is let in from where a client is."""
        return username not in self.settings.loopback_users or is_loopback(peer)

    def without_name(self, client: Client) -> Authenticated:
        """Who a client is that names no user: the name in its certificate, or nobody."""
        if client.certificate_name:
            known = self._users.get(client.certificate_name)
            if self.revision < 0:
                self.results["certificate", "busy"] += 1
                return Authenticated(Reason.SERVER_UNAVAILABLE)
            if known is not None and not known.enabled:
                self.results["certificate", "failure"] += 1
                return Authenticated(Reason.NOT_AUTHORIZED)
            self.results["certificate", "success"] += 1
            return Authenticated(0, client.certificate_name)
        if self.anonymous_allowed(client.peer):
            return ANONYMOUS
        self.results["anonymous", "failure"] += 1
        return Authenticated(Reason.NOT_AUTHORIZED)

    def _verify(
        self,
        username: str,
        password: bytes,
        reachable: bool,
        done: Callable[[Authenticated], None],
    ) -> None:
        user = self.user(username) if reachable else None
        stored = user.hash if user is not None else None
        self.pending += 1
        assert self._pool is not None
        future = self._pool.submit(self._verifier.verify, password, stored)
        digest = self._digest(password)
        future.add_done_callback(partial(self._verified, username, stored, digest, done))

    def _verified(
        self,
        username: str,
        stored: str | None,
        digest: bytes,
        done: Callable[[Authenticated], None],
        future: Future[bool],
    ) -> None:
        """Back from a verifying thread to the loop, unless that has closed meanwhile."""
        matches = not future.cancelled() and future.exception() is None and future.result()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finished, username, stored, digest, done, matches)

    def _finished(
        self,
        username: str,
        stored: str | None,
        digest: bytes,
        done: Callable[[Authenticated], None],
        matches: bool,
    ) -> None:
        self.pending -= 1
        user = self.user(username)
        valid = matches and user is not None and user.hash == stored
        self.results["password", "success" if valid else "failure"] += 1
        if valid and stored is not None:
            if len(self._verified_before) >= REMEMBERED_MAX:
                self._verified_before.clear()
            self._verified_before[username] = (stored, digest)
        done(
            Authenticated(0, username) if valid else Authenticated(Reason.BAD_USER_NAME_OR_PASSWORD)
        )

    def anonymous_allowed(self, peer: str) -> bool:
        """Whether a client that names no user is let in from where it comes."""
        allow = self.settings.anonymous.allow
        if allow == "loopback":
            return is_loopback(peer)
        return allow == "always"

    def policy(self, client_id: str, username: str) -> Policy:
        """The permissions of a client; a certificate's holder who is no user has those of anonymous ones."""
        user = self._users.get(username) if username else None
        if user is not None:
            return Policy(user.publish, user.subscribe, client_id=client_id, username=username)
        anonymous = self.settings.anonymous
        if self._anonymous is None and not any(
            "{" in rule for rule in (*anonymous.publish, *anonymous.subscribe)
        ):
            self._anonymous = Policy(anonymous.publish, anonymous.subscribe)
        return self._anonymous or Policy(
            anonymous.publish,
            anonymous.subscribe,
            client_id=client_id,
            username=username or None,
        )

    def will_policy(self, client_id: str, username: str, without_user: bool) -> Policy | None:
        """The permissions of a client that may be away; None when it might not be here now.

        ``without_user``: it was no known user when it connected. Else one without a record was deleted, and does not become
        anonymous by that.
        """
        user = self._users.get(username) if username else None
        if user is not None:
            allowed = user.enabled
        elif username:
            allowed = without_user
        else:
            allowed = self.settings.anonymous.allow != "never"
        return self.policy(client_id, username) if allowed else None

    def scram_exchange(self) -> ServerExchange:
        """A new exchange with a fresh nonce."""
        return ServerExchange(secrets.token_urlsafe(NONCE_BYTES), self._secret)

    def scram_keys(self, username: str, peer: str) -> StoredKeys | None:
        """The SCRAM keys of a user who may log in from where a client is."""
        user = self.user(username) if self.reachable(username, peer) else None
        return user.scram if user is not None else None


def is_loopback(peer: str) -> bool:
    """Whether ``address:port`` is this machine, IPv4-mapped addresses included."""
    if peer.startswith("127."):
        return True
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
