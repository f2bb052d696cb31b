"""The transfers of a link's messages to its client.

Mostly successive messages of a queue are of one `DeliveryTemplate`, and are encoded together, straight
from the batch. Others are encoded one by one: those that take several frames, and those whose body
section depends on the payload.
"""

from __future__ import annotations

from typing import Final

from fluxmq.model.batch_format import ATTRIBUTE_REDELIVERED, Batch
from fluxmq.model.properties import PropertyError
from fluxmq.protocols.amqp10.delivery import (
    FIRST_BYTES,
    DeliveryTemplate,
    TransferForm,
    transfer_frames,
)
from fluxmq.protocols.amqp10.message_template import MessageTemplate, template_of
from fluxmq.protocols.amqp10.performatives import AttachFrame
from fluxmq.protocols.amqp10.types import ULong
from fluxmq.sessions.amqp10.ports import LinkSession
from fluxmq.sessions.amqp10.serials import MASK

SETTLED: Final = 1
"""snd-settle-mode: the sender sends all deliveries settled."""
KEY_BYTES_MAX: Final = 255
"""Bytes of the key that is told of a message whose property block is malformed."""
_NO_ANNOTATIONS: Final[dict[str, object]] = {}
_OFFSET_ANNOTATION: Final[dict[str, object]] = {"x-stream-offset": ULong(1 << 63)}
"""The offset of a stream's message, of eight bytes, to be replaced by each message's."""


class LinkDeliveries:
    """Encodes the messages of one link. ``settled``: they are sent settled. ``stream``: of a stream, and
    have its offset as an annotation. ``message_max``: bytes of a message that the client takes, 0 for
    any.

    The template is that of the last transfers, which were delivered for the time ``_attempts``.
    """

    __slots__ = (
        *("_attempts", "_form", "_known", "_session", "_template"),
        *("message_max", "settled", "stream"),
    )

    def __init__(self, session: LinkSession, attach: AttachFrame, stream: bool) -> None:
        self._session = session
        self.settled = attach.snd_settle_mode == SETTLED
        self.stream = stream
        self.message_max = attach.max_message_size or 0
        frame_max = session.client.frame_max
        if self.message_max:
            frame_max = min(frame_max, self.message_max + FIRST_BYTES)
        self._form = TransferForm(session.channel, attach.handle, self.settled, frame_max)
        self._known: tuple[bytes, bytes, MessageTemplate] | None = None
        self._template: DeliveryTemplate | None = None
        self._attempts = 0

    def together(self, batch: Batch, first: int, most: int, attempts: int) -> tuple[bytes, int]:
        """Return transfers of messages from index ``first`` on that are of one template and take a frame
        each, and how many these are: at most ``most``, and as many as fill the connection's output."""
        template = self._template_of(batch, first, attempts)
        if template is None:
            return b"", 0
        session = self._session
        room = session.client.connection.room()
        number = session.outgoing.next_delivery
        data = template.encode(batch, first, most, self._form, number, room)
        return data, template.count

    def singly(self, batch: Batch, first: int, most: int, attempts: int) -> tuple[list[bytes], int]:
        """Return the frames of messages from index ``first`` on, whatever they are, and how many these
        are: as for ``together``, and none that is larger than the client takes."""
        session, form = self._session, self._form
        left = session.client.connection.room()
        number = session.outgoing.next_delivery
        frame_max = session.client.frame_max
        frames: list[bytes] = []
        count = 0
        while count < most and left > 0:
            message = self._message(batch, first + count, attempts)
            if self.message_max and len(message) > self.message_max:
                break
            serial = (number + count) & MASK
            frames += transfer_frames(
                form.channel, form.handle, serial, self.settled, message, frame_max
            )
            left -= len(message)
            count += 1
        return frames, count

    def _template_of(self, batch: Batch, index: int, attempts: int) -> DeliveryTemplate | None:
        """Return the template of a message, and of those behind it that are like it; None if there is no
        such template."""
        known = self._template
        if known is not None and self._attempts == attempts and known.matches(batch, index):
            return known
        block, key, made = self._sections(batch, index)
        expires = batch.expiry(index)
        marked = batch.attributes(index) & ATTRIBUTE_REDELIVERED != 0
        found = made.delivery(
            block,
            key,
            ttl_ms=self._ttl_ms(expires),
            delivery_count=0 if self.stream else attempts - 1,
            first_acquirer=attempts <= 1 and not marked,
            numbered=self.stream,
        )
        if found is not None:
            found.expiry, found.redelivered = expires, marked
        self._template = None if expires else found  # time passes
        self._attempts = attempts
        return found

    def _message(self, batch: Batch, index: int, attempts: int) -> bytes:
        """Return the sections of a message."""
        _, _, made = self._sections(batch, index)
        marked = batch.attributes(index) & ATTRIBUTE_REDELIVERED != 0
        return made.message(
            batch.payload(index),
            ttl_ms=self._ttl_ms(batch.expiry(index)),
            delivery_count=0 if self.stream else attempts - 1,
            first_acquirer=attempts <= 1 and not marked,
            number=batch.base_offset + index if self.stream else None,
        )

    def _sections(self, batch: Batch, index: int) -> tuple[bytes, bytes, MessageTemplate]:
        """Return block and key of a message, and its template."""
        block, key = batch.properties(index), batch.key(index)
        known = self._known
        if known is None or known[0] != block or known[1] != key:
            annotations = _OFFSET_ANNOTATION if self.stream else _NO_ANNOTATIONS
            try:
                made = template_of(block, key, annotations)
            except (PropertyError, ValueError):
                made = template_of(b"", key[:KEY_BYTES_MAX], annotations)
            known = self._known = (block, key, made)
        return known

    def _ttl_ms(self, expires: int) -> int | None:
        """Return what is left of the life of a message, in milliseconds; None for ever."""
        if not expires:
            return None
        return max((expires - self._session.broker.now_us()) // 1000, 0)
