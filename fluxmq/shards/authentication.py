"""Who a client is: anonymous, a user with a password or SCRAM, or the holder of a certificate.

Users come from the control process as whole snapshots with a revision. Passwords are verified by a few threads
(`verifying`); the number waiting is bounded, beyond it clients are told that the server is busy. An unknown user costs what
a known one does. Failed logins delay the next ones (`guessing`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

from fluxmq.auth.addresses import key_of_peer
from fluxmq.auth.guessing import Guessing, GuessingLimits
from fluxmq.auth.origins import Page
from fluxmq.auth.policy import Policy
from fluxmq.auth.scram import ServerExchange, StoredKeys
from fluxmq.auth.users import User
from fluxmq.logs import RateLimited, get_logger
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.protocols.mqtt.reasons import Reason
from fluxmq.sessions.mqtt.ports import Authenticated
from fluxmq.sessions.mqtt.session import Client
from fluxmq.settings.schema import Auth
from fluxmq.shards.verifying import Login, Verifications

NONCE_BYTES = 18
"""Random bytes of the server's part of a SCRAM nonce: 24 characters of base64."""
SECRET_BYTES = 32
REMEMBERED_MAX = 10_000
"""Users whose last verified password is known again without the work of argon2id, which costs 100 ms of a core: clients
that connect for every message would do nothing else. The digest is keyed with a secret of this process alone."""
FAILURES_LOGGED_PER_SECOND = 1 / 60
"""Lines about failed logins from one address: one for each burst of them, which says how many there were before."""
LOGGED_NAME_CHARACTERS = 64
"""Of a name that anybody made up, as much as a line has."""
INITIAL_USERS = frozenset({"guest"})
INITIAL_REVISION = 1
"""The users of a node where nobody has added one, and their revision: after one was added and deleted again it is a later one."""
ANONYMOUS = Authenticated(0)


class Authentication:
    """Checks credentials for one shard."""

    def __init__(
        self, settings: Auth, loop: asyncio.AbstractEventLoop, certificates: bool = False
    ) -> None:
        """`certificates`: whether some listener checks certificates of clients, whose names need no user."""
        self._loop = loop
        self._secret = os.urandom(SECRET_BYTES)
        self._digest_key = os.urandom(SECRET_BYTES)
        self._verified_before: dict[str, tuple[str, bytes]] = {}
        """By user: the hash that a password was verified against, and that password's digest."""
        self._users: dict[str, User] = {}
        self.revision = -1
        self._certificates = certificates
        self.results: Counter[tuple[str, str]] = Counter()
        self._log = RateLimited(
            get_logger("fluxmq.auth"), per_second=FAILURES_LOGGED_PER_SECOND, burst=1
        )
        self.guessing = Guessing(guessing_limits(settings))
        self._verifications = Verifications(settings, loop, self._begin, self._finish, self._refuse)
        self.configure(settings)

    def configure(self, settings: Auth) -> None:
        """Take new settings; verifications under way end under the old ones."""
        self.settings = settings
        self._anonymous: Policy | None = None
        """The policy of all anonymous clients, where it does not depend on the client."""
        self._verifications.configure(settings)
        self.guessing.limits = guessing_limits(settings)

    def close(self) -> None:
        """Let the threads end."""
        self._verifications.close()

    @property
    def pending(self) -> int:
        """Passwords that wait to be verified, or are being."""
        return self._verifications.pending

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
        if not connect.username or self._nobody_yet(client, connect.username):
            done(self.without_name(client))
            return
        self.verify(connect.username, connect.password or b"", client.peer, done)

    def _nobody_yet(self, client: Client, username: str) -> bool:
        """Whether an unknown name is taken for none: no user was ever added, and the client needs no name.

        A program with a name in its settings, on a node where nobody has set up users, is let in as what it would be
        without one.
        """
        return (
            0 <= self.revision <= INITIAL_REVISION
            and username not in self._users
            and self._users.keys() <= INITIAL_USERS
            and not client.certificate_name
            and self.anonymous_allowed(client)
        )

    def verify(
        self,
        username: str,
        password: bytes,
        peer: str,
        done: Callable[[Authenticated], None],
    ) -> None:
        """Find out whether a password is a user's; ``done`` is called now or when it was verified.

        A user that is let in from this machine only is nobody elsewhere, and costs what an unknown one does. Neither a
        flood of logins nor failures of others hold up the password that was verified before.
        """
        if self.revision < 0:
            # Control has not told yet who there is: try again, rather than "wrong password".
            self.results["password", "busy"] += 1
            done(Authenticated(Reason.SERVER_UNAVAILABLE))
            return
        address, now = key_of_peer(peer), self._loop.time()
        if self.guessing.wait_of_user(username, address, now):
            self._delayed("password", done)
            return
        reachable = self.reachable(username, peer)
        remembered = self._remembers(username, password) if reachable else None
        if remembered:
            self._accept(username, address, done)
            return
        if self.guessing.wait(username, address, now):
            if remembered is False:
                # Told apart from the right one without argon2: it must not be a way to guess without delay.
                self._failed(username, address)
            self._delayed("password", done)
            return
        self._verifications.add(Login(username, password, address, reachable, done))

    def _delayed(self, method: str, done: Callable[[Authenticated], None]) -> None:
        self.results[method, "delayed"] += 1
        done(Authenticated(Reason.SERVER_BUSY))

    def _accept(self, username: str, address: str, done: Callable[[Authenticated], None]) -> None:
        self.results["password", "success"] += 1
        self.guessing.succeeded(username, address, self._loop.time())
        done(Authenticated(0, username))

    def _failed(self, username: str, address: str) -> None:
        """A login did not hold: the next ones may have to wait, and somebody may want to know."""
        self.guessing.failed(username, address, self._loop.time())
        self._log.event(
            logging.INFO,
            address,
            "logins fail",
            user=username[:LOGGED_NAME_CHARACTERS],
            address=address,
        )

    def _remembers(self, username: str, password: bytes) -> bool | None:
        """Whether just this password was verified against the user's hash as it is now; None if none was."""
        user = self.user(username)
        known = self._verified_before.get(username)
        if user is None or known is None or known[0] != user.hash:
            return None
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
            return self.by_certificate(client.certificate_name, client.peer)
        if self.anonymous_allowed(client):
            return ANONYMOUS
        self.results["anonymous", "failure"] += 1
        return Authenticated(Reason.NOT_AUTHORIZED)

    def by_certificate(self, name: str, peer: str, user_needed: bool = False) -> Authenticated:
        """Whether the holder of a certificate may be whom it names, who is no user perhaps unless ``user_needed``."""
        if self.revision < 0:
            self.results["certificate", "busy"] += 1
            return Authenticated(Reason.SERVER_UNAVAILABLE)
        known = self._users.get(name)
        allowed = known.enabled if known is not None else not user_needed
        if not allowed or not self.reachable(name, peer):
            self.results["certificate", "failure"] += 1
            return Authenticated(Reason.NOT_AUTHORIZED)
        self.results["certificate", "success"] += 1
        return Authenticated(0, name)

    def _begin(self, login: Login) -> bool:
        """A login's turn has come: whether its password has to be verified, after what has come out meanwhile."""
        if login.reachable and self._remembers(login.username, login.password):
            self._accept(login.username, login.address, login.done)
            return False
        if self.guessing.wait(login.username, login.address, self._loop.time()):
            self._delayed("password", login.done)
            return False
        user = self.user(login.username) if login.reachable else None
        login.stored = user.hash if user is not None else None
        return True

    def _refuse(self, login: Login) -> None:
        """There is no room for a login among those that wait."""
        self.results["password", "busy"] += 1
        login.done(Authenticated(Reason.SERVER_BUSY))

    def _finish(self, login: Login, matches: bool) -> None:
        username = login.username
        user = self.user(username)
        if not matches or user is None or user.hash != login.stored:
            self.results["password", "failure"] += 1
            self._failed(username, login.address)
            login.done(Authenticated(Reason.BAD_USER_NAME_OR_PASSWORD))
            return
        if len(self._verified_before) >= REMEMBERED_MAX:
            self._verified_before.clear()
        self._verified_before[username] = (user.hash, self._digest(login.password))
        self._accept(username, login.address, login.done)

    def anonymous_allowed(self, client: Client) -> bool:
        """Whether a client that names no user is let in from where it comes.

        A browser on this machine lends its address to every page: a page from elsewhere is nobody's until it names a
        user. Nor does a name of the DNS that is the page's and the request's make it this machine's.
        """
        allow, page = self.settings.anonymous.allow, client.page
        if page is Page.FOREIGN:
            return False
        if allow == "loopback":
            return is_loopback(client.peer) and page is not Page.SAME
        return allow == "always"

    def may_return(self, principal: str) -> bool:
        """Whether somebody may still log in as a principal: what it left behind is kept for it until then.

        A name that is no user's may be a certificate's, where clients present certificates.
        """
        if not principal:
            return self.settings.anonymous.allow != "never"
        return principal in self._users or self.revision < 0 or self._certificates

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

    def login_refusal(self, username: str, peer: str) -> int:
        """Why a SCRAM login cannot be tried now: users are not known yet, or others failed before; 0: it can."""
        if self.revision < 0:
            self.results["scram-sha-256", "busy"] += 1
            return Reason.SERVER_UNAVAILABLE
        if self.guessing.wait(username, key_of_peer(peer), self._loop.time()):
            self.results["scram-sha-256", "delayed"] += 1
            return Reason.SERVER_BUSY
        return 0

    def scram_result(self, username: str, peer: str, success: bool) -> None:
        """A SCRAM login was tried."""
        address = key_of_peer(peer)
        self.results["scram-sha-256", "success" if success else "failure"] += 1
        if success:
            self.guessing.succeeded(username, address, self._loop.time())
        elif username:
            self._failed(username, address)

    def scram_keys(self, username: str, peer: str) -> StoredKeys | None:
        """The SCRAM keys of a user who may log in from where a client is."""
        user = self.user(username) if self.reachable(username, peer) else None
        return user.scram if user is not None else None


def guessing_limits(settings: Auth) -> GuessingLimits:
    """The settings about failed logins."""
    failed = settings.failed_logins
    return GuessingLimits(
        failed.per_user,
        failed.per_address,
        failed.first_delay,
        failed.max_delay,
        failed.forget_after,
    )


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
