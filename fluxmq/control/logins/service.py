"""Asks the login backends beside the internal one, and remembers their answers.

A login is accepted by the first backend that accepts it. When none does, and one could not be
asked, the login is unavailable: refused, but not as wrong. A backend that fails again and again is
left alone for a moment. What is remembered is keyed by a digest of name and password with a secret
of this process.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from fluxmq.auth.logins import HTTP, LDAP, OAUTH2
from fluxmq.auth.remote_rights import RightsQuestion
from fluxmq.auth.scopes import Rights, ScopesError, rights_of
from fluxmq.control.logins.backend import (
    AskLaterError,
    BackendError,
    BackendSettingsError,
    LoginBackend,
    LoginGrant,
    Verdict,
)
from fluxmq.ipc.login_messages import (
    LOGIN,
    LOGIN_RIGHTS,
    LoginAnswer,
    LoginQuestion,
    RightsAsked,
    RightsDecided,
)
from fluxmq.ipc.messages import Body, ControlMessage
from fluxmq.logs import RateLimited, get_logger
from fluxmq.metrics.registry import Sample
from fluxmq.settings.schema import AuthSettings

KINDS: Final = (LOGIN, LOGIN_RIGHTS)
CHECKS_MAX: Final = 1024
"""Logins under way: each holds a token, and a connection to a backend."""
CHECK_SECONDS: Final = 10.0
"""Time for a backend to decide a login, with all its questions: clients do not wait longer."""
FAILURES_IN_A_ROW: Final = 5
"""Failures after which a backend is left alone."""
PAUSE_SECONDS: Final = 2.0
"""Time for which it is; then one login tries it."""
LOGGED_CHARACTERS: Final = 64
"""Characters logged of a name, which anybody can make up."""

_log = get_logger("fluxmq.auth")


class ExpiredError(ValueError):
    """A login was good when it was checked, and has ended since."""


class _Slot:
    """A backend, and how it fared lately. ``paused_until``: monotonic seconds."""

    def __init__(self, backend: LoginBackend, section: object) -> None:
        self.backend = backend
        self.section = section
        self.failures = 0
        self.paused_until = 0.0


class LoginBackends:
    """The backends of one node. ``current`` returns the settings in force, the same object until they
    change; ``vhosts`` the names of virtual hosts."""

    def __init__(
        self,
        current: Callable[[], AuthSettings],
        vhosts: Callable[[], Sequence[str]],
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make the backends. Raises BackendSettingsError."""
        self._current = current
        self._vhosts = vhosts
        self._now = now
        self._wall = wall
        self._secret = secrets.token_bytes(32)
        self._slots: dict[str, _Slot] = {}
        self._known: OrderedDict[bytes, tuple[Verdict, float]] = OrderedDict()
        self._settings = settings = current()
        self._stopping: set[asyncio.Task[None]] = set()
        self._log = RateLimited(_log, per_second=0.1, burst=3)
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.rights: Counter[tuple[str, str]] = Counter()
        """Decisions about operations, by backend and outcome."""
        self.pending = 0
        self._configure(settings)

    def _follow(self) -> None:
        """Apply changed settings; the former ones stay if they cannot be."""
        settings = self._current()
        if settings is self._settings:
            return
        self._settings = settings
        try:
            former = self._configure(settings)
        except BackendSettingsError as problem:
            _log.error("login backends not reloaded: %s", problem)
            return
        for slot in former:
            task = asyncio.get_running_loop().create_task(slot.backend.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    def _configure(self, settings: AuthSettings) -> list[_Slot]:
        """Return the backends that are no longer used. Raises BackendSettingsError."""
        sections = {OAUTH2: settings.oauth2, HTTP: settings.http, LDAP: settings.ldap}
        slots: dict[str, _Slot] = {}
        for name in settings.backends:
            section = sections.get(name)
            if section is None:
                continue
            former = self._slots.get(name)
            if former is not None and former.section == section:
                slots[name] = former
            else:
                slots[name] = _Slot(_made(name, settings, self._now, self._wall), section)
        unused = [slot for slot in self._slots.values() if slot not in slots.values()]
        self._slots = slots
        self._known.clear()
        return unused

    async def answer(self, message: ControlMessage) -> Body:
        """Answer a shard. Raises MessageError."""
        if message.kind == LOGIN_RIGHTS:
            question = RightsAsked.from_body(message.body).question
            return (await self.decide(question)).to_body()
        return (await self.check(LoginQuestion.from_body(message.body))).to_body()

    async def decide(self, question: RightsQuestion) -> RightsDecided:
        """Have a backend decide about an operation; shards remember the answers."""
        self._follow()
        name = question.backend
        slot = self._slots.get(name)
        if slot is None or self.pending >= CHECKS_MAX or self._now() < slot.paused_until:
            return RightsDecided(allowed=False, decided=False)
        self.pending += 1
        try:
            allowed = await slot.backend.allows(question)
        except BackendError as problem:
            self._failed(name, slot, problem)
            self.rights[name, "unavailable"] += 1
            return RightsDecided(allowed=False, decided=False)
        finally:
            self.pending -= 1
        slot.failures = 0
        self.rights[name, "allowed" if allowed else "refused"] += 1
        return RightsDecided(allowed)

    def _failed(self, name: str, slot: _Slot, problem: BackendError) -> None:
        """Note that a backend could not be asked."""
        slot.failures += 1
        if slot.failures >= FAILURES_IN_A_ROW:
            slot.paused_until = self._now() + PAUSE_SECONDS
        self._log.event(
            logging.WARNING, f"away-{name}", "auth.%s cannot be asked: %s", name, problem
        )

    async def check(self, question: LoginQuestion) -> LoginAnswer:
        """Decide a login."""
        self._follow()
        if self.pending >= CHECKS_MAX:
            return LoginAnswer("busy")
        self.pending += 1
        try:
            return await self._check(question)
        finally:
            self.pending -= 1

    async def _check(self, question: LoginQuestion) -> LoginAnswer:
        failed = LoginAnswer("wrong", question.backends[-1])
        for name in question.backends:
            slot = self._slots.get(name)
            if slot is None:
                continue
            try:
                verdict = await self._ask(name, slot, question)
                if isinstance(verdict, LoginGrant):
                    answer = self._granted(name, verdict)
                    self.outcomes[name, "accepted"] += 1
                    return answer
            except AskLaterError:
                self.outcomes[name, "busy"] += 1
                failed = LoginAnswer("busy", name)
                continue
            except BackendError:
                self.outcomes[name, "unavailable"] += 1
                failed = LoginAnswer("unavailable", name)
                continue
            except (ScopesError, ExpiredError) as problem:
                verdict = str(problem)
            self._refused(name, question, verdict)
        return failed

    def _refused(self, name: str, question: LoginQuestion, reason: str) -> None:
        self.outcomes[name, "refused"] += 1
        self._log.event(
            logging.INFO,
            f"refused-{name}-{question.address}",
            "login refused by auth.%s: %s",
            name,
            reason,
            user=question.username[:LOGGED_CHARACTERS],
            address=question.address,
        )

    async def _ask(self, name: str, slot: _Slot, question: LoginQuestion) -> Verdict:
        """Return what a backend says, or has said a short time ago. Raises BackendError."""
        key = self._key(name, question)
        found = self._known.get(key)
        if found is not None and self._now() < found[1]:
            return found[0]
        if self._now() < slot.paused_until:
            raise BackendError("it failed several times just now")
        if slot.failures >= FAILURES_IN_A_ROW:
            slot.paused_until = self._now() + PAUSE_SECONDS  # others wait for this one's result
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                verdict = await slot.backend.check(question, self._vhosts())
        except AskLaterError:
            raise
        except TimeoutError as problem:
            late = BackendError(f"no answer within {CHECK_SECONDS:g} s")
            self._failed(name, slot, late)
            raise late from problem
        except BackendError as problem:
            self._failed(name, slot, problem)
            raise
        slot.failures, slot.paused_until = 0, 0.0
        self._remember(key, verdict)
        return verdict

    def _key(self, name: str, question: LoginQuestion) -> bytes:
        digest = blake2b(key=self._secret, digest_size=32)
        # A server may decide by the client's address as well.
        address = question.address if name == HTTP else ""
        for part in (name, question.username, address):
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        digest.update(question.password)
        return digest.digest()

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        cache = self._settings.cache
        seconds = cache.success if isinstance(verdict, LoginGrant) else cache.failure
        if seconds:
            self._known[key] = verdict, self._now() + seconds
            self._known.move_to_end(key)
            while len(self._known) > cache.entries:
                self._known.popitem(last=False)

    def _granted(self, name: str, grant: LoginGrant) -> LoginAnswer:
        """Return the answer for an accepted login, with the rights in the present virtual hosts.
        Raises ScopesError, or ExpiredError for a token that has expired since it was verified."""
        remaining = 0.0
        if grant.expires_at:
            remaining = grant.expires_at - self._wall()
            if remaining <= 0:
                raise ExpiredError("the token has expired")
        rights = Rights(grant.permissions)
        if grant.scopes:
            rights = rights_of(grant.scopes, self._vhosts())
        return LoginAnswer(
            *("accepted", name, grant.name, grant.tags, rights.permissions, rights.keys, remaining),
            *(grant.resources, grant.topics),
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics."""
        for (backend, outcome), count in self.outcomes.items():
            labels = {"backend": backend, "outcome": outcome}
            yield "fluxmq_login_backend_checks_total", labels, count
        for (backend, outcome), count in self.rights.items():
            labels = {"backend": backend, "outcome": outcome}
            yield "fluxmq_login_backend_rights_total", labels, count
        yield "fluxmq_login_backend_pending", {}, self.pending
        yield "fluxmq_login_cache_entries", {}, len(self._known)

    async def stop(self) -> None:
        """Close what the backends have open."""
        await asyncio.gather(*(slot.backend.stop() for slot in self._slots.values()))


def _made(
    name: str, settings: AuthSettings, now: Callable[[], float], wall: Callable[[], float]
) -> LoginBackend:
    """Return a backend, whose libraries are loaded only here. Raises BackendSettingsError."""
    try:
        if name == OAUTH2 and settings.oauth2 is not None:
            from fluxmq.control.logins.oauth2 import OAuth2Backend

            return OAuth2Backend(settings.oauth2, wall, now)
        if name == HTTP and settings.http is not None:
            from fluxmq.control.logins.http_server import HttpLoginBackend

            return HttpLoginBackend(settings.http)
        assert settings.ldap is not None, "the section was there"
        from fluxmq.control.logins.directory import LdapBackend

        return LdapBackend(settings.ldap)
    except ImportError as problem:
        raise BackendSettingsError(
            f"auth.{name}: the module {problem.name} is not installed:"
            f" pip install 'fluxmq-broker[{name}]'"
        ) from problem
    except BackendSettingsError as problem:
        raise BackendSettingsError(f"auth.{name}.{problem}") from problem
