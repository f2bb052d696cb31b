"""The positive control: the checker finds what stock pysyncobj loses over TCP."""

from __future__ import annotations

import pytest

from tests.chaos import control


def test_losses_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    # About every second trial loses something: that twelve in a row do not happens once in thousands.
    assert control.main(["--trials", "12", "--until-lost"]) == 0
    said = capsys.readouterr().out
    assert "confirmed lost, broken {'I1': " in said
    assert not said.splitlines()[-1].endswith(" 0 confirmed lost")
