"""Client authentication: anonymous, by password, by SCRAM, or by certificate.

Users come from the control process as whole snapshots with a revision. A few threads verify
passwords (`password_verifications`); the queue is bounded, and beyond it clients get "server busy".
An unknown user costs as much as a known one. Failed logins delay the next ones (`guessing`). Other
backends are asked through the control process (`backend_logins`), in the order of the settings. An
imported hash is replaced after the login (`fluxmq.ipc.hash_upgrades`), which changes no identity.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address

from fluxmq.auth.addresses import key_of_peer
from fluxmq.auth.hash_upgrades import HashUpgrade, same_password
from fluxmq.auth.login_steps import looks_like_token, steps
from fluxmq.auth.login_throttle import LoginThrottle, guessing_limits
from fluxmq.auth.logins import INTERNAL, OAUTH2, AuthResult, LoginOutcome
from fluxmq.auth.origins import PageOrigin
from fluxmq.auth.policy import TopicPolicy
from fluxmq.auth.scram import ServerExchange, StoredKeys
from fluxmq.auth.users import User
from fluxmq.ipc.hash_upgrades import HashUpgrades
from fluxmq.ipc.login_messages import LoginAnswer
from fluxmq.logs import RateLimited, get_logger
from fluxmq.net.secure_websocket import SecureWebSocketStream
from fluxmq.net.tls import TlsStream
from fluxmq.net.websocket import WebSocketStream
from fluxmq.protocols.mqtt.packets import Connect
from fluxmq.sessions.mqtt.session import MqttClient
from fluxmq.settings.schema import AuthSettings
from fluxmq.shards.backend_logins import BackendLogins
from fluxmq.shards.bans import CurrentBans
from fluxmq.shards.password_verifications import Login, Verifications
from fluxmq.shards.remembered_passwords import RememberedPasswords

NONCE_BYTES = 18
"""Random bytes of the server's part of a SCRAM nonce: 24 characters of base64."""
SECRET_BYTES = 32
FAILURES_LOGGED_PER_SECOND = 1 / 60
"""Maximum rate of log lines about failed logins per address: one per burst, with the count
before."""
LOGGED_NAME_CHARACTERS = 64
"""Maximum number of characters logged of a name, which anybody can make up."""
INITIAL_USERS = frozenset({"guest"})
INITIAL_REVISION = 1
"""Users of a node where none was ever added, and their revision, which any change raises for
good."""
ANONYMOUS = AuthResult(LoginOutcome.ACCEPTED)
BANNED = AuthResult(LoginOutcome.BANNED)
PERMITTED = TopicPolicy(("#", "$queue/#"), ())
"""Permissions to publish what has been permitted before."""


class Authentication:
    """Checks credentials for one shard."""

    def __init__(
        self,
        settings: AuthSettings,
        loop: asyncio.AbstractEventLoop,
        certificates: bool = False,
        bans: CurrentBans | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """`certificates`: whether a listener verifies client certificates, whose names need no
        user. `now`: clock of connections, in monotonic seconds; by default the loop's."""
        self._loop = loop
        self._secret = os.urandom(SECRET_BYTES)
        self._remembered = RememberedPasswords()
        self._users: dict[str, User] = {}
        self.revision = -1
        self._certificates = certificates
        self.bans = bans or CurrentBans()
        self.results: Counter[tuple[str, str]] = Counter()
        self._log = RateLimited(
            get_logger("fluxmq.auth"), per_second=FAILURES_LOGGED_PER_SECOND, burst=1
        )
        self.guessing = LoginThrottle(guessing_limits(settings.failed_logins))
        self._verifications = Verifications(settings, loop, self._begin, self._finish, self._refuse)
        self.upgrades = HashUpgrades(loop.call_later, self._give_up)
        self.backends = BackendLogins(settings, now or loop.time, self._decided)
        self.configure(settings)

    def configure(self, settings: AuthSettings) -> None:
        """Apply new settings; verifications in progress finish under the old ones."""
        self.settings = settings
        self._anonymous: TopicPolicy | None = None
        """The policy of all anonymous clients, if it does not depend on the client."""
        self._verifications.configure(settings)
        self.backends.configure(settings)
        self.guessing.limits = guessing_limits(settings.failed_logins)

    def close(self) -> None:
        """Stop the threads."""
        self._verifications.close()

    @property
    def pending(self) -> int:
        """Number of passwords that wait for verification or are being verified."""
        return self._verifications.pending + self.backends.pending

    def set_users(self, revision: int, users: tuple[User, ...]) -> set[str]:
        """Apply a snapshot; return the names whose record changed or was deleted. A hash that is
        replaced for the same password is no change."""
        fresh = {user.name: user for user in users}
        changed = set()
        for name in self._users.keys() | fresh.keys():
            before, after = self._users.get(name), fresh.get(name)
            if before == after:
                continue
            if before is None or after is None or not same_password(before.hash, after.hash):
                changed.add(name)
                continue
            self._remembered.replaced(name, before.hash, after.hash)
            if replace(before, hash=after.hash, scram=after.scram) != after:
                changed.add(name)
        self._users = fresh
        self.revision = revision
        self.upgrades.drop(self._hash_of)
        return changed

    def _hash_of(self, name: str) -> str | None:
        user = self._users.get(name)
        return None if user is None else user.hash

    def _give_up(self, upgrade: HashUpgrade) -> None:
        """Have the user's next password verified anew, which makes another upgrade."""
        self._remembered.forget(upgrade.name, upgrade.verified)

    def users(self) -> list[User]:
        """Return the snapshot in force."""
        return list(self._users.values())

    def record(self, name: str) -> User | None:
        """Return a user's record, enabled or not."""
        return self._users.get(name)

    def user(self, name: str) -> User | None:
        """Return a user who may log in, or None."""
        user = self._users.get(name)
        return user if user is not None and user.enabled else None

    def check(
        self, client: MqttClient, connect: Connect, done: Callable[[AuthResult], None]
    ) -> None:
        """Authenticate a client; ``done`` is called now or after the password was verified."""
        identify(client)
        name, password = connect.username or "", connect.password or b""
        # A token says whose it is.
        named = name or (OAUTH2 in self.settings.backends and looks_like_token(password))
        if not named or self._nobody_yet(client, name):
            done(self.without_name(client))
            return
        self.verify(name, password, client.peer, done)

    def _nobody_yet(self, client: MqttClient, username: str) -> bool:
        """Return whether to ignore an unknown name: no user was ever added, and none is needed.

        A program with a name in its settings, on a node without users, is admitted as if it had
        given none.
        """
        return (
            self.settings.backends == (INTERNAL,)
            and 0 <= self.revision <= INITIAL_REVISION
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
        done: Callable[[AuthResult], None],
    ) -> None:
        """Verify a user's password, or token; ``done`` is called now or after the verification.

        A user restricted to this machine does not exist elsewhere, and costs as much as an unknown
        one. Neither a flood of logins nor others' failures hold up the password that was verified
        before.
        """
        if self.bans.refuse("password", peer, username):
            done(BANNED)
            return
        if self.revision < 0:
            # Users are not known yet: ask to try again, rather than report a wrong password.
            self.results["password", "busy"] += 1
            done(AuthResult(LoginOutcome.UNAVAILABLE))
            return
        address, now = key_of_peer(peer), self._loop.time()
        if self.guessing.wait_of_user(username, address, now):
            self._delayed("password", done)
            return
        asked = steps(self.settings.backends, username in self._users, password)
        reachable = self.reachable(username, peer)
        remembered = None
        if reachable and asked[:1] == (INTERNAL,):
            remembered = self._remembers(username, password)
        if remembered:
            self._accept(username, address, done)
            return
        if self.guessing.wait(username, address, now):
            if remembered is False:
                # Recognised as wrong without argon2: that must not allow guessing without delay.
                self._failed(username, address)
            self._delayed("password", done)
            return
        self._next(Login(username, password, peer, address, reachable, done, asked))

    def _next(self, login: Login) -> None:
        """Have the next backend decide a login; it fails if there is none."""
        if not login.steps:
            self._fail(login)
        elif login.steps[0] == INTERNAL:
            login.steps = login.steps[1:]
            self._verifications.add(login)
        else:
            self.backends.ask(login)

    def _fail(self, login: Login, method: str = "password") -> None:
        """Refuse a login that no backend has accepted."""
        if login.later is not None:
            self.results[method, "busy"] += 1
            login.done(AuthResult(login.later))
            return
        self.results[method, "failure"] += 1
        self._failed(login.username, login.address)
        login.done(AuthResult(LoginOutcome.WRONG))

    def _decided(self, login: Login, answer: LoginAnswer) -> None:
        """Continue with what other backends have decided."""
        accepted = answer.outcome == "accepted"
        # The name in a token is known only now.
        if accepted and self.bans.refuse(answer.backend, login.peer, answer.name):
            login.done(BANNED)
            return
        if accepted and self.reachable(answer.name, login.peer):
            self.results[answer.backend, "success"] += 1
            self.guessing.succeeded(login.username, login.address, self._loop.time())
            made = self.backends.login(answer)
            login.done(AuthResult(LoginOutcome.ACCEPTED, answer.name, made))
            return
        if answer.outcome == "busy":
            login.later = LoginOutcome.BUSY
        elif answer.outcome == "unavailable":
            login.later = LoginOutcome.UNAVAILABLE
        if login.steps:
            self._next(login)
        else:
            self._fail(login, answer.backend or "backend")

    def _delayed(self, method: str, done: Callable[[AuthResult], None]) -> None:
        self.results[method, "delayed"] += 1
        done(AuthResult(LoginOutcome.BUSY))

    def _accept(self, username: str, address: str, done: Callable[[AuthResult], None]) -> None:
        self.results["password", "success"] += 1
        self.guessing.succeeded(username, address, self._loop.time())
        done(AuthResult(LoginOutcome.ACCEPTED, username))

    def _failed(self, username: str, address: str) -> None:
        """Record a failed login: it may delay the next ones, and is logged."""
        self.guessing.failed(username, address, self._loop.time())
        self._log.event(
            logging.INFO,
            address,
            "login failed",
            user=username[:LOGGED_NAME_CHARACTERS],
            address=address,
        )

    def _remembers(self, username: str, password: bytes) -> bool | None:
        """Return whether this password was verified against the user's current hash; None if none
        was."""
        user = self.user(username)
        return None if user is None else self._remembered.matches(username, user.hash, password)

    def reachable(self, username: str, peer: str) -> bool:
        """Return whether a user may log in from a client's address."""
        return username not in self.settings.loopback_users or is_loopback(peer)

    def without_name(self, client: MqttClient) -> AuthResult:
        """Authenticate a client without a user name: by its certificate, or as anonymous."""
        if client.certificate_name:
            return self.by_certificate(client.certificate_name, client.peer)
        if self.anonymous_allowed(client):
            return ANONYMOUS
        self.results["anonymous", "failure"] += 1
        return AuthResult(LoginOutcome.DENIED)

    def by_certificate(self, name: str, peer: str, user_needed: bool = False) -> AuthResult:
        """Authenticate the holder of a certificate; its name need not be a user's unless
        ``user_needed``."""
        if self.bans.refuse("certificate", peer, name):
            return BANNED
        if self.revision < 0:
            self.results["certificate", "busy"] += 1
            return AuthResult(LoginOutcome.UNAVAILABLE)
        known = self._users.get(name)
        allowed = known.enabled if known is not None else not user_needed
        if not allowed or not self.reachable(name, peer):
            self.results["certificate", "failure"] += 1
            return AuthResult(LoginOutcome.DENIED)
        self.results["certificate", "success"] += 1
        return AuthResult(LoginOutcome.ACCEPTED, name)

    def _begin(self, login: Login) -> bool:
        """Return whether a login whose turn has come still needs verification."""
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
        """Refuse a login because the queue is full."""
        self.results["password", "busy"] += 1
        login.done(AuthResult(LoginOutcome.BUSY))

    def _finish(self, login: Login, matches: bool) -> None:
        username = login.username
        user = self.user(username)
        stored = login.stored
        if not matches or user is None or stored is None or not same_password(stored, user.hash):
            self._next(login)
            return
        self._remembered.remember(username, user.hash, login.password)
        self._accept(username, login.address, login.done)
        if login.upgrade is not None and login.upgrade.verified == user.hash:
            self.upgrades.add(login.upgrade)

    def anonymous_allowed(self, client: MqttClient) -> bool:
        """Return whether a client without a user name is admitted from its address.

        A browser on this machine lends its address to every page: a page from elsewhere must log in
        as a user. A DNS name shared by the page and the request does not make the page local
        either.
        """
        allow, page = self.settings.anonymous.allow, client.page
        if page is PageOrigin.FOREIGN:
            return False
        if allow == "loopback":
            return is_loopback(client.peer) and page is not PageOrigin.SAME
        return allow == "always"

    def may_return(self, principal: str) -> bool:
        """Return whether a principal may still log in: until then its session is kept for it.

        A name that is not a user's may be a certificate's, if clients present certificates, or
        known to another backend.
        """
        if not principal:
            return self.settings.anonymous.allow != "never"
        elsewhere = self._certificates or self.settings.backends != (INTERNAL,)
        return principal in self._users or self.revision < 0 or elsewhere

    def policy(self, client_id: str, username: str) -> TopicPolicy:
        """Return a client's permissions; a certificate holder who is not a user gets anonymous
        ones."""
        user = self._users.get(username) if username else None
        if user is not None:
            return TopicPolicy(user.publish, user.subscribe, client_id=client_id, username=username)
        anonymous = self.settings.anonymous
        if self._anonymous is None and not any(
            "{" in rule for rule in (*anonymous.publish, *anonymous.subscribe)
        ):
            self._anonymous = TopicPolicy(anonymous.publish, anonymous.subscribe)
        return self._anonymous or TopicPolicy(
            anonymous.publish,
            anonymous.subscribe,
            client_id=client_id,
            username=username or None,
        )

    def will_policy(
        self, client_id: str, username: str, without_user: bool, backend: str = ""
    ) -> TopicPolicy | None:
        """Return the permissions of a possibly absent client; None if it could not connect now.

        ``without_user``: it was not a known user when it connected. Otherwise a missing record
        means that the user was deleted, which does not make it anonymous. A user of another backend
        has the rights of the last login. Where that is not known, or does not say, it counts that
        ``backend`` permitted the will when it was accepted, as long as it is one of the settings.
        """
        if backend:
            if backend not in self.settings.backends:
                return None
            login = self.backends.last(username)
            if login is None or login.backend != backend or login.remote is not None:
                return PERMITTED
            return login.policy(client_id)
        user = self._users.get(username) if username else None
        if user is not None:
            allowed = user.enabled
        elif username:
            allowed = without_user
        else:
            allowed = self.settings.anonymous.allow != "never"
        return self.policy(client_id, username) if allowed else None

    def scram_exchange(self) -> ServerExchange:
        """Return a new exchange with a fresh nonce."""
        return ServerExchange(secrets.token_urlsafe(NONCE_BYTES), self._secret)

    def login_refusal(self, username: str, peer: str) -> LoginOutcome | None:
        """Return the reason for refusing a SCRAM login (users unknown yet, failed logins, a ban);
        None to allow it."""
        if self.bans.refuse("scram-sha-256", peer, username):
            return LoginOutcome.BANNED
        if self.revision < 0:
            self.results["scram-sha-256", "busy"] += 1
            return LoginOutcome.UNAVAILABLE
        if self.guessing.wait(username, key_of_peer(peer), self._loop.time()):
            self.results["scram-sha-256", "delayed"] += 1
            return LoginOutcome.BUSY
        return None

    def scram_result(self, username: str, peer: str, success: bool) -> None:
        """Record the result of a SCRAM login."""
        address = key_of_peer(peer)
        self.results["scram-sha-256", "success" if success else "failure"] += 1
        if success:
            self.guessing.succeeded(username, address, self._loop.time())
        elif username:
            self._failed(username, address)

    def scram_keys(self, username: str, peer: str) -> StoredKeys | None:
        """Return the SCRAM keys of a user who may log in from a client's address."""
        user = self.user(username) if self.reachable(username, peer) else None
        return user.scram if user is not None else None


def without_credentials(authentication: Authentication, peer: str) -> AuthResult:
    """Authenticate an AMQP client without a user name, as the user that the settings name."""
    settings = authentication.settings.anonymous
    name = settings.amqp_user
    if authentication.bans.refuse("anonymous", peer, name):
        return BANNED
    if authentication.revision < 0:
        authentication.results["anonymous", "busy"] += 1
        return AuthResult(LoginOutcome.UNAVAILABLE)
    from_here = settings.allow == "always" or (settings.allow == "loopback" and is_loopback(peer))
    known = authentication.user(name) is not None
    if not from_here or not known or not authentication.reachable(name, peer):
        authentication.results["anonymous", "failure"] += 1
        return AuthResult(LoginOutcome.DENIED)
    authentication.results["anonymous", "success"] += 1
    return AuthResult(LoginOutcome.ACCEPTED, name)


def identify(client: MqttClient) -> None:
    """Note the client's certificate, and in whose web page it runs."""
    stream = client.connection.stream
    if isinstance(stream, SecureWebSocketStream):
        client.page, stream = stream.websocket.page, stream.tls
    if isinstance(stream, TlsStream):
        identity = stream.peer_identity()
        if identity is not None:
            client.certificate_name = identity.common_name or ""
    elif isinstance(stream, WebSocketStream):
        client.page = stream.page


def is_loopback(peer: str) -> bool:
    """Return whether ``address:port`` is this machine, including IPv4-mapped addresses."""
    if peer.startswith("127."):
        return True
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
