"""A sample of the campaign: damage anywhere gives back everything that was acknowledged, or is refused by name."""

from pathlib import Path

from tests.damage.campaign import run

CASES = 150
PER_DIRECTORY = 30


def test_damage_anywhere_is_harmless_or_refused(tmp_path: Path) -> None:
    results = run(tmp_path, CASES, 11, PER_DIRECTORY)
    assert results.wrong == []
    outcomes = {outcome for _, outcome in results.outcomes}
    assert outcomes == {"whole", "refused"}
    for kind in ("wal", "seg", "snap", "placement.json", "VERSION"):
        assert results.outcomes[kind, "refused"] > 0, kind
    for kind in ("idx", "head", "groups", "wal.synced"):
        assert results.outcomes[kind, "refused"] == 0, kind
