"""A part of a batch, cut out for a consumer on another shard, says the same of each message as the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxmq._hot.batches import parse, verify
from fluxmq.model.batches import Message, columns, encode
from fluxmq.shards.queues.cutting import cut
from tests.props.test_batches import MESSAGES


@given(MESSAGES, st.integers(0, 2**40), st.integers(0, 2**31), st.data())
def test_a_part_is_what_it_was(
    messages: list[Message], base_offset: int, term: int, data: st.DataObject
) -> None:
    batch = parse(encode(messages, base_offset, term))
    batch.stamp(base_offset, batch.base_time, term)
    first = data.draw(st.integers(0, batch.count - 1))
    count = data.draw(st.integers(1, batch.count - first))
    content = b"frame" + cut(batch, first, count)
    part = parse(content, 5)
    verify(part)
    assert (part.base_offset, part.count, part.term) == (base_offset + first, count, term)
    whole = list(columns(encode(messages, base_offset, term)).messages())
    assert list(columns(content, 5).messages()) == whole[first : first + count]
