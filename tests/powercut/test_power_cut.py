"""The power cut: the harness loses what was not synced and nothing else; the node loses nothing confirmed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.powercut import amqp_load
from tests.powercut.campaign import Campaign, Plan, Tally
from tests.powercut.image import Image, NotPermittedError

ROUNDS = int(os.environ.get("FLUXMQ_POWERCUT_ROUNDS", "3"))
SEED = int(os.environ.get("FLUXMQ_POWERCUT_SEED", "20"))


def run(plan: Plan) -> tuple[Tally, list[str]]:
    """A campaign and what it said; the test is skipped where images cannot be mounted."""
    said: list[str] = []
    try:
        return Campaign(plan, said.append).run(), said
    except NotPermittedError as error:
        pytest.skip(f"no power cuts here: {error}")


def test_the_cut_loses_what_was_not_synced_and_only_that(tmp_path: Path) -> None:
    try:
        image = Image(tmp_path)
    except NotPermittedError as error:
        pytest.skip(f"no power cuts here: {error}")
    with image:
        kept, lost = image.place / "kept", image.place / "lost"
        with kept.open("wb") as file:
            file.write(b"synced")
            file.flush()
            os.fsync(file.fileno())
            directory = os.open(image.place, os.O_RDONLY)
            os.fsync(directory)
            os.close(directory)
        lost.write_bytes(b"only written")
        assert lost.read_bytes() == b"only written"
        image.cut()
        with pytest.raises(OSError, match="Input/output error"):
            (image.place / "after").write_bytes(b"x")
        image.remount()
        assert kept.read_bytes() == b"synced"
        assert not lost.exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_confirmed_is_lost() -> None:
    tally, said = run(Plan(rounds=ROUNDS, seed=SEED, workers=1))
    report = "\n".join([*said, *tally.sentences])
    assert tally.rounds == ROUNDS, report
    assert tally.clean, report
    assert tally.confirmed > 100, report
    over_amqp = {*sum(amqp_load.PUBLISHERS.values(), ()), *amqp_load.TRANSACTIONS.values()}
    assert over_amqp <= tally.publishers, report
    assert (
        tally.line() == f"rounds={ROUNDS} confirmed={tally.confirmed} 0 confirmed lost, 0 phantoms"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_when_it_dies_at_a_named_place() -> None:
    tally, said = run(Plan(rounds=max(2, ROUNDS // 2), seed=SEED, workers=1, failpoints=True))
    report = "\n".join([*said, *tally.sentences])
    assert tally.clean, report
    assert tally.confirmed > 10, report


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_acknowledgements_without_syncing_is_found_out() -> None:
    tally, said = run(Plan(rounds=1, seed=SEED, workers=1, buffered=True))
    assert tally.confirmed > 100, "\n".join([*said, *tally.sentences])
    assert tally.lost > 0, "\n".join([*said, *tally.sentences])
