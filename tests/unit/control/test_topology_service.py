"""The topology from the database to the shards' copies and back, over real sockets."""

import asyncio
import contextlib

import pytest

from fluxmq.control import topology_service
from fluxmq.control.peers import RequestError
from fluxmq.ipc.client import ControlClient
from fluxmq.ipc.conversation import Handlers
from fluxmq.ipc.messages import (
    ERROR_FAILED,
    Body,
    Failure,
    MessageError,
    ProcessHello,
    ProcessNumbers,
)
from fluxmq.ipc.topology_messages import (
    TOPOLOGY,
    TopologyChanged,
    change_body,
    pack_set,
)
from fluxmq.routing.topology.changes import (
    Bind,
    DeleteQueue,
)
from fluxmq.routing.topology.records import Binding
from fluxmq.routing.topology.refusals import Refusal
from tests.unit.control.topology_node import Node, Shard, queue, run, until


def test_a_change_is_answered_when_every_live_shard_has_it(tmp_path):
    async def scenario(node):
        first, second = await node.shard(0), await node.shard(1)
        assert await first.change(queue("q")) is None
        for copy in (first.topology, second.topology):
            assert copy.queue("/", "q") is not None
            assert copy.snapshot() == node.topology.snapshot()
        assert await second.change(DeleteQueue("/", "q"), queue("r")) is None
        assert [each.name for each in first.topology.queues()] == ["r"]

    run(Node(tmp_path), scenario)


def test_a_set_is_made_whole_or_not_at_all(tmp_path):
    async def scenario(node):
        shard = await node.shard()
        bad = Bind(Binding("/", "nowhere", "q"))
        refusal = await shard.change(queue("q"), bad)
        assert refusal == Refusal(404, "no exchange 'nowhere' in vhost '/'")
        assert list(shard.topology.queues()) == []
        changed = await node.topology_service.change([(queue("a"),), (bad,), (queue("b"),)])
        assert [result is None for result in changed.results] == [True, False, True]
        assert {("queue", "/", "a"), ("queue", "/", "b")} <= await node.stored()
        # Nothing to be written, nothing to be told: the revision stays.
        again = await node.change(queue("a"))
        assert again == TopologyChanged(changed.revision, (None,))

    run(Node(tmp_path), scenario)


def test_what_is_not_understood_is_refused(tmp_path):
    async def scenario(node):
        body = await node.topology_service.answer(
            change_body([[["dance", {}]], pack_set([queue("q")])])
        )
        first, second = TopologyChanged.from_body(body).results
        assert first is not None
        assert (first.code, second) == (406, None)
        with pytest.raises(MessageError):
            await node.topology_service.answer({})

    run(Node(tmp_path), scenario)


def test_changes_that_come_together_are_written_together(tmp_path):
    async def scenario(node):
        await node.shard()
        commits = []
        node.store._database.set_trace_callback(
            lambda text: commits.append(text) if text == "COMMIT" else None
        )
        changed = await asyncio.gather(*(node.change(queue(str(n))) for n in range(50)))
        assert all(each.results == (None,) for each in changed)
        assert len(commits) == 1
        assert len(await node.stored()) == len(node.topology)

    run(Node(tmp_path), scenario)


def test_shards_that_do_not_confirm_in_time_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_service, "CONFIRM_SECONDS", 0.2)

    async def scenario(node):
        await node.shard(0)
        node.live.append("shard-7")
        assert (await node.change(queue("q"))).unconfirmed == ("shard-7",)

    run(Node(tmp_path), scenario)


def test_a_shard_that_is_behind_gets_what_it_lacks_or_everything(tmp_path, monkeypatch):
    previous = []

    async def scenario(node):
        shard = await node.shard()
        held = []

        def slow(body, answered):
            previous.append(body["previous"])
            held.append((body, answered))

        slow_shard = await node.shard(1, commands={TOPOLOGY: slow})
        await until(lambda: held)

        def catch_up():
            while held:
                body, answered = held.pop(0)
                slow_shard.topics.commands[TOPOLOGY](body, answered)

        catch_up()
        await until(lambda: len(node.listener.processes) == 2)
        waits = [asyncio.create_task(node.change(queue(name))) for name in "abc"]
        await until(lambda: held)
        later = [asyncio.create_task(node.change(queue(name))) for name in "de"]
        await until(lambda: shard.topology.queue("/", "e"))
        catch_up()
        await until(lambda: held)
        catch_up()
        await asyncio.gather(*waits, *later)
        assert slow_shard.topology.snapshot() == node.topology.snapshot()
        # Everything at first, then from where it was; several changes at once.
        assert previous == [-1, 1, 4]
        monkeypatch.setattr(topology_service, "HISTORY_MAX", 1)
        waits = [asyncio.create_task(node.change(queue("f")))]
        await until(lambda: held)
        waits += [asyncio.create_task(node.change(queue(name))) for name in "gh"]
        await until(lambda: shard.topology.queue("/", "h"))
        catch_up()
        await until(lambda: held)
        catch_up()
        await asyncio.gather(*waits)
        assert previous[3:] == [6, -1]
        assert slow_shard.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_a_copy_that_outlived_its_connection_is_not_sent_everything_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fluxmq.ipc.topology_messages.PART_ROWS_MAX", 2)

    async def scenario(node):
        shard = await node.shard()
        taken = []
        take = shard.topics.commands[TOPOLOGY]

        def count(body, answered):
            taken.append(body["number"])
            take(body, answered)

        handlers = Handlers(lambda: (), ProcessNumbers, commands={TOPOLOGY: count})
        control = ControlClient(node.path / "s", ProcessHello("shard", 1, 1), handlers)
        again = asyncio.create_task(control.run())
        await until(lambda: len(node.listener.processes) == 2)
        node.live.append("shard-1")
        assert (await node.change()).unconfirmed == ()
        assert taken == [0]
        again.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await again

    run(Node(tmp_path), scenario)


def test_a_copy_that_is_out_of_step_gets_everything(tmp_path):
    async def scenario(node):
        shard = await node.shard()
        await shard.change(queue("a"))
        # As if it had missed a change that control believes it has.
        shard.topology.revision = 0
        assert await shard.change(queue("b")) is None
        assert shard.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_a_shard_that_stalls_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_service, "PUSH_SECONDS", 0.05)
    stalled: list[Body] = []

    async def scenario(node):
        def stall(body, answered):
            if len(stalled) < 2:
                stalled.append(body)
            else:
                shard.topics.commands[TOPOLOGY](body, answered)

        shard = await node.shard(0, commands={TOPOLOGY: stall})
        await until(lambda: shard.topics.known)
        assert len(stalled) == 2
        assert (await node.change(queue("q"))).unconfirmed == ()
        assert shard.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_a_shard_that_refuses_everything_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_service, "CONFIRM_SECONDS", 0.2)
    asked = []

    def refuse(body, answered):
        asked.append(body)
        answered(Failure(ERROR_FAILED, "no"))

    async def scenario(node):
        await node.shard(0, commands={TOPOLOGY: refuse})
        await until(lambda: asked)
        assert (await node.change(queue("q"))).unconfirmed == ("shard-0",)
        assert len(asked) == 2

    run(Node(tmp_path), scenario)


def test_nothing_is_told_while_it_is_being_written(tmp_path):
    async def scenario(node):
        release = asyncio.Event()
        write = node.store.write_topology
        loop = asyncio.get_running_loop()

        def held(*arguments):
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(5)
            return write(*arguments)

        node.store.write_topology = held
        changing = asyncio.create_task(node.change(queue("q")))
        await until(lambda: node.topology.queue("/", "q") is not None)
        made = Shard(node.path / "s", 0, 1, None)
        node.shards.append(made)
        await until(lambda: made.control.established)
        await until(lambda: node.listener.processes)
        assert not made.topics.known
        release.set()
        await changing
        await until(lambda: made.topics.known)
        assert made.topology.snapshot() == node.topology.snapshot()

    run(Node(tmp_path), scenario)


def test_what_waits_for_the_disk_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(topology_service, "WAITING_MAX", 2)

    async def scenario(node):
        changes = [asyncio.create_task(node.change(queue(str(n)))) for n in range(3)]
        done, _ = await asyncio.wait(changes)
        (failed,) = [error for each in done if (error := each.exception()) is not None]
        assert isinstance(failed, RequestError)
        assert failed.code == ERROR_FAILED

    run(Node(tmp_path), scenario)
