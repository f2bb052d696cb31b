"""Password verification: waiting logins, and the threads that verify them.

argon2id takes tens of milliseconds and releases the interpreter lock. The threads share their core
with the loop; the queue is bounded, in total and per address, and addresses take turns: many logins
from one address wait behind each other while others pass them. A login without room is answered at
once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from fluxmq.auth.credentials import SALT_BYTES, HashParameters, PasswordVerifier
from fluxmq.auth.fair_queue import FairQueue
from fluxmq.auth.hash_upgrades import HashUpgrade, checked
from fluxmq.auth.logins import AuthResult, LoginOutcome
from fluxmq.auth.scram import SALT_BYTES as SCRAM_SALT_BYTES
from fluxmq.settings.schema import AuthSettings

VERIFY_NICENESS = 5
"""Increase of niceness of the verifying threads, which share their core with the loop: a third of
its weight, so that a flood of logins does not slow down messages, nor messages lock everybody
out."""


@dataclass(slots=True)
class Login:
    """A login with a password. ``peer``: the client's address and port, ``address`` their key of
    `addresses`; ``reachable``: whether the user may log in from there; ``steps``: backends still to
    be asked; ``stored``: the hash to compare with, None for an unknown user; ``upgrade``: what may
    replace an imported one that matched; ``later``: a backend could not decide, for this reason."""

    username: str
    password: bytes
    peer: str
    address: str
    reachable: bool
    done: Callable[[AuthResult], None]
    steps: tuple[str, ...] = ()
    stored: str | None = None
    upgrade: HashUpgrade | None = None
    later: LoginOutcome | None = None


class Verifications:
    """Lives on the shard's loop. ``begin`` returns, when a login's turn comes, whether its password
    still needs verification; ``finish`` gets the result; ``refuse`` gets logins without room."""

    def __init__(
        self,
        settings: AuthSettings,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[Login], bool],
        finish: Callable[[Login, bool], None],
        refuse: Callable[[Login], None],
    ) -> None:
        self._loop = loop
        self._begin = begin
        self._finish = finish
        self._refuse = refuse
        self._waiting: FairQueue[Login] = FairQueue(0, 0)
        self._running = 0
        self.pool: ThreadPoolExecutor | None = None
        self.configure(settings)

    def configure(self, settings: AuthSettings) -> None:
        """Apply new settings; verifications in progress finish under the old ones."""
        if self.pool is not None:
            self.pool.shutdown(wait=False)
        self._threads = settings.verify_threads
        self.pool = ThreadPoolExecutor(
            self._threads, "verify", initializer=partial(os.nice, VERIFY_NICENESS)
        )
        cost = settings.argon2
        self._verifier = PasswordVerifier(
            HashParameters(cost.time_cost, cost.memory_cost // 1024, cost.parallelism),
            os.urandom(SALT_BYTES),
        )
        self._waiting.most = max(1, settings.max_pending_verifications - self._threads)
        self._waiting.most_per_key = settings.max_pending_per_address

    def close(self) -> None:
        """Stop the threads."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)

    @property
    def pending(self) -> int:
        """Number of logins that wait or are being verified."""
        return self._running + len(self._waiting)

    def add(self, login: Login) -> None:
        """Verify a login's password when its turn comes."""
        refused = self._waiting.add(login.address, login)
        if refused is not None:
            self._refuse(refused)
        self._go_on()

    def _go_on(self) -> None:
        while self._running < self._threads:
            login = self._waiting.take()
            if login is None:
                return
            if not self._begin(login):
                continue
            assert self.pool is not None
            self._running += 1
            future = self.pool.submit(
                checked,
                *(self._verifier, login.username, login.password, login.stored),
                os.urandom(SCRAM_SALT_BYTES),
            )
            future.add_done_callback(partial(self._verified, login))

    def _verified(self, login: Login, future: Future[tuple[bool, HashUpgrade | None]]) -> None:
        """Hand a result from its thread to the loop, unless the loop is closed."""
        matches, upgrade = False, None
        if not future.cancelled() and future.exception() is None:
            matches, upgrade = future.result()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finished, login, matches, upgrade)

    def _finished(self, login: Login, matches: bool, upgrade: HashUpgrade | None) -> None:
        self._running -= 1
        login.upgrade = upgrade
        self._finish(login, matches)
        self._go_on()
