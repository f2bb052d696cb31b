"""A cluster that is maltreated loses nothing that it confirmed: a short run, in namespaces and on disks of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.configurations import BY_NAME
from tests.chaos.records import OK, Fault, Publish, read
from tests.chaos.run import run
from tests.powercut.image import NotPermittedError

SECONDS = float(os.environ.get("FLUXMQ_CHAOS_SECONDS", "16"))
SEED = int(os.environ.get("FLUXMQ_CHAOS_SEED", "1"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_a_cluster_confirms_survives_a_kill_and_a_partition(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "short.history"
    try:
        report = run(BY_NAME["short"], SECONDS, SEED, "forward", path, said.append)
    except NotPermittedError as error:
        pytest.skip(f"no chaos here: {error}")
    told = "\n".join([*said, *report.lines()])
    assert report.clean, told
    assert " 0 confirmed lost, unexpected 0," in report.lines()[-1]
    with path.open("rb") as lines:
        records = list(read(lines))
    kinds = {record.kind for record in records if isinstance(record, Fault)}
    assert kinds == {"F3 node killed", "F5 leader cut off"}, told
    confirmed = [each for each in records if isinstance(each, Publish) and each.outcome == OK]
    assert len(confirmed) > 500, told
    assert {each.protocol for each in confirmed} == {"mqtt", "amqp", "amqp10"}
    assert len({each.queues for each in confirmed}) == 5, "every queue, and the topic of two"
