"""A part of a batch, cut out for a consumer on another shard, says the same of each message as the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxmq.engine.batch_slices import cut, is_timed, shifted
from fluxmq.model.batch_format import parse, verify
from fluxmq.model.batches import BatchMessage, columns, encode
from tests.props.test_batches import MESSAGES

TIME_MAX = 2**63 - 1


@given(MESSAGES, st.integers(0, 2**40), st.integers(0, 2**31), st.data())
def test_a_part_is_what_it_was(
    messages: list[BatchMessage], base_offset: int, term: int, data: st.DataObject
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


@given(MESSAGES, st.integers(1, 2**55))
def test_a_shifted_batch_differs_in_its_times_alone(messages: list[BatchMessage], by: int) -> None:
    """Review finding 3: what a message brings of expiry and delay is of its publisher's time."""
    before = encode(messages, 0, 0)
    after = shifted(before, by)
    verify(parse(after))
    expected = [
        message._replace(
            expiry_us=min(message.expiry_us + by, TIME_MAX) if message.expiry_us else 0,
            delay_us=min(message.delay_us + by, TIME_MAX) if message.delay_us else 0,
        )
        for message in columns(before).messages()
    ]
    assert list(columns(after).messages()) == expected
    timed = any(message.expiry_us or message.delay_us for message in messages)
    assert is_timed(before) == timed
    if not timed:
        assert after == before
