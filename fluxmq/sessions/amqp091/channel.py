"""One channel as its parts see it: where they answer, wait, and give their turn back.

Source: AMQP 0-9-1 section 1.5 (channel).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from fluxmq.protocols.amqp091.ledger import ChannelLedger
from fluxmq.protocols.amqp091.method_codec import frame
from fluxmq.protocols.amqp091.methods import Method
from fluxmq.sessions.amqp091.client import AmqpClient
from fluxmq.sessions.amqp091.ports import AmqpBrokerPort


class ChannelState(Enum):
    """State of a channel. ``CLOSING``: channel.close was sent; all but its answer is ignored.
    ``CROSSED``: the client has closed meanwhile as well."""

    OPEN = 1
    CLOSING = 2
    CROSSED = 3
    CLOSED = 4


class Channel:
    """One channel of a connection. ``waiting``: a method awaits its answer, and later ones wait
    for it.

    ``mark``: has the channel flushed before the tick ends. ``answered``: takes a method, a function
    and the answers; calls the function with these, and lets the channel continue.
    """

    __deletable__ = ("answered", "mark")

    def __init__(
        self,
        client: AmqpClient,
        number: int,
        mark: Callable[[], None],
        answered: Callable[..., None],
    ) -> None:
        self.client = client
        self.broker: AmqpBrokerPort = client.broker
        self.number = number
        self.mark = mark
        self.answered = answered
        self.ledger = ChannelLedger(number, mark)
        self.state = ChannelState.OPEN
        self.waiting = False

    @property
    def is_open(self) -> bool:
        """True while methods are executed."""
        return self.state is ChannelState.OPEN

    def send(self, method: Method) -> None:
        """Send a method on this channel."""
        self.client.connection.append(frame(self.number, method))

    def answer(self, method: Method | None) -> None:
        """Send an answer; None: the client does not wait for one."""
        if method is not None:
            self.send(method)

    def later(
        self, method: Method | type[Method], then: Callable[..., None]
    ) -> Callable[..., None]:
        """Return a callback for the answer to ``method``: it calls ``then``, and the channel
        continues.

        It does nothing when the channel is closed by then. ``then`` may raise an AmqpError, and may
        wait again.
        """
        self.waiting = True
        self.ledger.direct = False
        return partial(self.answered, method, then)

    def let_go(self) -> None:
        """Take a released channel apart: with ledger and parts it forms cycles, and the garbage
        collector does not run during traffic."""
        if self.ledger.mark is not None:
            self.ledger.mark = None
            del self.mark, self.answered
