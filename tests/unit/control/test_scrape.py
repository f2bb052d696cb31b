"""One scrape over several processes, some of which do not answer."""

import asyncio
import os
import time

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from fluxmq.control import scrape
from fluxmq.control.peers import PeerError
from fluxmq.control.scrape import Scraper, ScrapeRequest
from fluxmq.ipc.messages import COLLECT, Report
from fluxmq.ipc.table import ProcessRow, ProcessState


def row(role, index=0, **changes):
    values = {
        "slot": 0,
        "pid": os.getpid(),
        "core": 0,
        "state": ProcessState.READY,
        "started_at": time.time() - 10,
        "restarts": 2,
        "last_exit": None,
        "heartbeat": time.monotonic_ns(),
        "ready": True,
        "connections": (0,) * 8,
        "reason": "",
    }
    return ProcessRow(role=role, index=index, **{**values, **changes})


ROWS = [row("shard", 0), row("shard", 1), row("acceptor"), row("control")]


class Process:
    """A connected process: answers with its samples, after a while, or not at all."""

    def __init__(self, name, samples):
        self.name = name
        self.samples = samples
        self.asked = 0
        self.silent: bool | str = False

    async def ask(self, kind, _body, seconds):
        assert kind == COLLECT
        self.asked += 1
        await asyncio.sleep(0)
        if self.silent == "gone":
            raise PeerError(f"{self.name} is gone")
        if self.silent:
            await asyncio.wait_for(asyncio.Event().wait(), seconds)
        return Report(tuple(self.samples)).to_body()


def ticks(count):
    return [("fluxmq_ticks_total", {}, count)]


def node():
    return [
        Process("shard-0", ticks(10)),
        Process("shard-1", ticks(11)),
        Process("acceptor", [("fluxmq_acceptor_pending", {}, 3)]),
    ]


def parsed(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def shard(name, index):
    return (name, ("shard", str(index)))


def test_all_processes_are_put_together():
    processes = node()
    scraper = Scraper(lambda: ROWS, lambda: processes, lambda: 4)
    found = parsed(asyncio.run(scraper.text()).body)
    assert found[shard("fluxmq_ticks_total", 0)] == 10
    assert found[shard("fluxmq_ticks_total", 1)] == 11
    assert found[shard("fluxmq_scrape_stale", 1)] == 0
    assert found["fluxmq_acceptor_pending",] == 3
    assert found["fluxmq_users",] == 4
    assert found["fluxmq_process_restarts_total", ("process", "control")] == 2
    assert found["fluxmq_process_up", ("process", "acceptor")] == 1
    assert 9 < found["fluxmq_process_uptime_seconds", ("process", "shard-0")] < 3600
    assert found["fluxmq_process_resident_memory_bytes", ("process", "shard-0")] > 1 << 20
    assert found["fluxmq_scrape_undeclared_samples_total",] == 0
    assert any(name[0] == "fluxmq_build_info" for name in found)


def test_openmetrics_on_request():
    """Prometheus asks for it; its strict parser reads every metric."""
    processes = node()
    scraper = Scraper(lambda: ROWS, lambda: processes, lambda: 4)
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    for prefix in ("", "rabbitmq"):
        found = asyncio.run(scraper.text(ScrapeRequest(prefix, accept=accept)))
        assert found.content_type.startswith("application/openmetrics-text; version=1.0.0")
        families = list(openmetrics.text_string_to_metric_families(found.body.decode()))
        assert len(families) > 10
    others = ("", ";", "*/*", "text/plain;version=1.0.0;escaping=values")
    versions = ("0.0.1", "abc", "99.0.0", "1.0.0<script>", "\u00e9")
    for accept in (*others, *(f"application/openmetrics-text;version={each}" for each in versions)):
        found = asyncio.run(scraper.text(ScrapeRequest(accept=accept)))
        assert found.content_type == "text/plain; version=0.0.4; charset=utf-8"


def test_a_silent_shard_is_shown_with_its_last_numbers_and_marked(monkeypatch):
    monkeypatch.setattr(scrape, "COLLECT_SECONDS", 0.05)
    processes = node()
    scraper = Scraper(lambda: ROWS, lambda: processes, lambda: 0)

    async def scenario():
        await scraper.text()
        processes[0].silent, processes[1].silent = True, "gone"
        processes[2].samples = [("fluxmq_acceptor_pending", {}, 9)]
        return parsed((await scraper.text()).body)

    found = asyncio.run(scenario())
    assert found[shard("fluxmq_ticks_total", 0)] == 10
    assert found[shard("fluxmq_scrape_stale", 0)] == 1
    assert found[shard("fluxmq_scrape_stale", 1)] == 1
    assert found["fluxmq_acceptor_pending",] == 9


def test_a_shard_never_heard_of_is_marked_and_has_no_numbers():
    scraper = Scraper(lambda: ROWS, lambda: node()[:1], lambda: 0)
    found = parsed(asyncio.run(scraper.text()).body)
    assert found[shard("fluxmq_scrape_stale", 1)] == 1
    assert shard("fluxmq_ticks_total", 1) not in found


def test_scrapes_at_once_share_one_and_survive_a_caller_that_leaves():
    processes = node()
    scraper = Scraper(lambda: ROWS, lambda: processes, lambda: 0)

    async def scenario():
        tasks = [asyncio.create_task(scraper.text()) for _ in range(10)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(scenario())
    assert isinstance(first, asyncio.CancelledError)
    assert len(set(others)) == 1
    assert processes[0].asked == 1


def test_undeclared_samples_are_counted_and_left_out():
    processes = node()
    processes[0].samples = [*ticks(1), ("fluxmq_invented", {}, 1)]
    scraper = Scraper(lambda: ROWS, lambda: processes, lambda: 0)

    async def scenario():
        await scraper.text()
        return parsed((await scraper.text()).body)

    found = asyncio.run(scenario())
    assert found["fluxmq_scrape_undeclared_samples_total",] == 2
    assert not any(name[0] == "fluxmq_invented" for name in found)


def test_a_process_that_is_gone_has_no_vitals():
    gone = [row("shard", 0, pid=0, heartbeat=0, ready=False), *ROWS[1:]]
    scraper = Scraper(lambda: gone, node, lambda: 0)
    found = parsed(asyncio.run(scraper.text()).body)
    assert found["fluxmq_process_up", ("process", "shard-0")] == 0
    assert ("fluxmq_process_uptime_seconds", ("process", "shard-0")) not in found
