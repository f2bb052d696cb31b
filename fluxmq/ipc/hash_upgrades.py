"""Hashes that wait to be replaced after a login, and the requests that have them replaced.

One request is under way at a time, and the next one follows after a pause, with what has come
meanwhile: after an import many users log in for the first time, and each change brings all users to
every shard. No login waits for it. What could not be replaced, because control or etcd is away or too
many wait, is given up, not tried again: the user's next login that is verified leads here again. No
socket, no clock: the process that verifies passwords brings both.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from fluxmq.auth.hash_upgrades import HashUpgrade
from fluxmq.ipc.messages import ERROR_AWAY, USER_UPGRADE, Body, Failure
from fluxmq.ipc.topology_client import RequestSender
from fluxmq.ipc.user_messages import UPGRADES_MAX, UserUpgrade
from fluxmq.logs import get_logger

PAUSE_SECONDS: Final = 10.0
"""Time between an answer and the next request."""
WAITING_MAX: Final = 4 * UPGRADES_MAX
"""Hashes that wait, half a kilobyte each: what a shard verifies in some ten seconds."""

_log = get_logger(__name__)


class HashUpgrades:
    """Lives on the loop of the process that verifies passwords.

    ``call_later`` calls after so many seconds; ``give_up`` gets what is not replaced.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        give_up: Callable[[HashUpgrade], None],
    ) -> None:
        self._control: RequestSender | None = None
        self._call_later = call_later
        self._give_up = give_up
        self._waiting: dict[str, HashUpgrade] = {}
        """By user; another hash of the same user replaces the former."""
        self._busy = False
        """True from a request to the end of the pause behind it."""

    def connect(self, control: RequestSender) -> None:
        """Send requests through this client from now on."""
        self._control = control

    @property
    def waiting(self) -> int:
        """Number of hashes that wait."""
        return len(self._waiting)

    def add(self, upgrade: HashUpgrade) -> None:
        """Have a hash replaced some time."""
        if len(self._waiting) >= WAITING_MAX and upgrade.name not in self._waiting:
            self._give_up(upgrade)
            return
        self._waiting[upgrade.name] = upgrade
        self._go_on()

    def drop(self, current: Callable[[str], str | None]) -> None:
        """Forget hashes that are not in force any more; ``current`` returns a user's."""
        self._waiting = {
            name: each for name, each in self._waiting.items() if current(name) == each.verified
        }

    def _go_on(self) -> None:
        if self._busy or not self._waiting:
            return
        sent = tuple(self._waiting.pop(name) for name in list(self._waiting)[:UPGRADES_MAX])
        self._busy = True
        body = UserUpgrade(sent).to_body()
        control, answered = self._control, partial(self._answered, sent)
        if control is None or not control.request(USER_UPGRADE, body, answered):
            self._answered(sent, Failure(ERROR_AWAY, "the control process is away"))

    def _answered(self, sent: tuple[HashUpgrade, ...], answer: Body | Failure) -> None:
        if isinstance(answer, Failure):
            _log.info(
                "imported hashes are not replaced now: %s", answer.text, extra={"users": len(sent)}
            )
            for each in sent:
                self._give_up(each)
        self._call_later(PAUSE_SECONDS, self._rested)

    def _rested(self) -> None:
        self._busy = False
        self._go_on()
