"""A host of queues from which nothing is expected, for tests that look at one call."""

from __future__ import annotations

from collections.abc import Callable

from fluxmq.engine.ports import (
    AppendCallback,
    Attached,
    AttachRequest,
    ConsumerHandle,
    ConsumerPort,
    StatusCallback,
)
from fluxmq.queues.origins import Identity


class Unasked:
    """Every call fails the test, but for those that a subclass answers."""

    def append(
        self,
        queue: str,
        batch: bytes,
        done: AppendCallback | None,
        identity: Identity | None = None,
        by_address: bool = False,
    ) -> bool:
        """Fail."""
        raise AssertionError(f"an append to {queue}")

    def attach(
        self,
        wanted: AttachRequest,
        port: ConsumerPort,
        done: Callable[[Attached, ConsumerHandle | None], None],
    ) -> None:
        """Fail."""
        raise AssertionError(f"a consumer of {wanted.queue}")

    def status(self, queue: str, done: StatusCallback) -> None:
        """Fail."""
        raise AssertionError(f"the status of {queue}")

    def purge(self, queue: str, done: StatusCallback) -> None:
        """Fail."""
        raise AssertionError(f"a purge of {queue}")

    def delete(self, queue: str, if_unused: bool, if_empty: bool, done: StatusCallback) -> None:
        """Fail."""
        raise AssertionError(f"the end of {queue}")
