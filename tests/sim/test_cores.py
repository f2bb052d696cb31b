"""The comparison of cores in `perf` does what it says, so it cannot rot unseen."""

from __future__ import annotations

import pysyncobj.pickle
import pysyncobj.syncobj
import pytest

from perf.micro import timed
from perf.micro.raft import SIZES, benchmarks, main


def test_both_cores_apply_every_command_on_every_member() -> None:
    before = pysyncobj.syncobj.monotonicTime, pysyncobj.pickle.dumps
    found = [timed(each, 0.0).name for each in benchmarks(40)]
    names = [name for _, name, _ in SIZES]
    assert found == [f"raft, {name}: {core}" for core in ("fluxmq", "pysyncobj") for name in names]
    assert (pysyncobj.syncobj.monotonicTime, pysyncobj.pickle.dumps) == before


def test_the_comparison_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(0.0)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["command", "fluxmq", "/s", "pysyncobj", "/s", "ratio"]
    assert [line[:8].strip() for line in lines] == [name for _, name, _ in SIZES]
    assert all(float(line.split()[-1]) > 0 for line in lines)
