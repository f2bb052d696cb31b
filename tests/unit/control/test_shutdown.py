"""What a process ends has a time to do so, and keeps nobody beyond it."""

import asyncio
import logging

import pytest

from fluxmq.control.shutdown import end


async def stubborn(release):
    while not release.is_set():
        try:
            await release.wait()
        except asyncio.CancelledError:
            continue


def test_what_does_not_end_is_named_and_left(caplog: pytest.LogCaptureFixture):
    ended = []

    async def quick():
        ended.append("quick")

    async def broken():
        raise OSError("no")

    async def scenario():
        release = asyncio.Event()
        steps = {"streams": stubborn(release), "http": quick(), "files": broken()}
        with caplog.at_level(logging.ERROR):
            assert not await end(steps, 0.05)
        release.set()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    said = [record.getMessage() for record in caplog.records]
    assert ended == ["quick"]
    assert "files did not stop cleanly" in said
    assert "streams did not stop in time; it is waiting in stubborn > Event.wait" in said


def test_what_ends_in_time_is_waited_for():
    async def scenario():
        release = asyncio.Event()
        asyncio.get_running_loop().call_soon(release.set)
        return await end({"streams": stubborn(release)}, 60.0), await end({}, 60.0)

    assert asyncio.run(scenario()) == (True, True)
