"""Performatives: all forms of a transfer mean the same to both of its readers; others come back as they
were written."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.protocols.amqp10.codec import MalformedError
from fluxmq.protocols.amqp10.performatives import TransferFrame, read, write
from fluxmq.protocols.amqp10.transfer_run import TransferRun
from fluxmq.protocols.amqp10.transfers import read_transfer

UINT = st.integers(0, 300) | st.integers(0, (1 << 32) - 1)
TRANSFERS = st.builds(
    TransferFrame,
    UINT,
    st.none() | UINT,
    st.none() | st.binary(max_size=32),
    st.none() | UINT,
    st.none() | st.booleans(),
    st.booleans(),
    aborted=st.booleans(),
    batchable=st.booleans(),
)


@given(TRANSFERS, st.binary(max_size=20))
def test_a_transfer_is_read_as_it_was_written(transfer: TransferFrame, payload: bytes) -> None:
    data = write(transfer)
    assert read(data + payload) == (transfer, len(data))
    found = read_transfer(data + payload)
    assert found in (None, (transfer, len(data)))
    if not transfer.aborted and not transfer.batchable:
        assert found is not None


@given(TRANSFERS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=3))
def test_the_short_way_reads_nothing_that_the_long_way_does_not(
    transfer: TransferFrame, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(write(transfer))
    for place, value in changes:
        data[place % len(data)] = value
    found = read_transfer(bytes(data))
    if found is not None:
        assert read(bytes(data)) == found
    else:
        with suppress(MalformedError):
            assert read(bytes(data))[1] <= len(data)


@pytest.mark.parametrize("field", [6, 7])
def test_a_boolean_is_no_settle_mode_and_no_state(field: int) -> None:
    """Both readers of transfers, and runs, leave it to the one that names the error."""
    flags = [0x42] * 6
    flags[6 - 4], flags[7 - 4] = 0x40, 0x40
    for wrong in (False, True):
        if wrong:
            flags[field - 4] = 0x42
        data = b"\0\x53\x14\xc0\x0d\x0a\x43\x43\xa0\1t\x43" + bytes(flags)
        sent = (8 + len(data) + 5).to_bytes(4, "big") + b"\2\0\0\0" + data + b"\0\x53\x75\xa0\0"
        count = TransferRun().read(bytearray(sent), 0, len(sent), 512)
        if wrong:
            assert (read_transfer(data), count) == (None, 0)
            with pytest.raises(MalformedError):
                read(data)
        else:
            assert read_transfer(data) == read(data)
            assert count == 1
