"""What is made of the figures of a start."""

from perf.start import Round, figures, page


def rounds() -> list[Round]:
    return [
        Round(0.7, ready, {"supervisor 1": 30.0, "fluxmq-shard-0 2": 20.0 + ready}, 80.0, [ready])
        for ready in (0.5, 0.9, 0.4)
    ]


def test_medians_stand_beside_their_goals() -> None:
    found = figures(rounds())
    assert found["ready, s"] == (0.5, 0.6)
    assert found["all processes idle, MB"] == (50.5, 150.0)
    assert found["each further shard, MB"] == (14.75, 40.0)
    assert found["killed shard serves again, s"] == (0.5, 0.05)


def test_the_page_names_processes_without_their_numbers() -> None:
    text = page(2, rounds())
    assert "| ready, s | 0.5 | 0.6 | 0.4 to 0.9 |" in text
    assert "| fluxmq-shard-0 | 20.4 |" in text
