"""Which queues a shard knows: what is decided about them, and what is heard of their groups."""

from __future__ import annotations

import pytest

from fluxmq.engine.names import QueueInfo, QueueNames
from fluxmq.queues.config import QueueConfig, QueueType
from fluxmq.settings.clustering import EPHEMERAL
from fluxmq.settings.schema import Settings


@pytest.fixture
def names() -> QueueNames:
    """Those of a node with one queue in its settings."""
    settings = Settings.model_validate({"queues": ({"name": "configured"},)})
    return QueueNames(settings, workers=2, local_groups=4)


def declare(names: QueueNames, name: str, group: str = "local-1") -> QueueInfo:
    info = QueueInfo(name, group, QueueType.CLASSIC)
    names.declare(info, QueueConfig(name=name))
    return info


def configured(names: QueueNames) -> list[str]:
    """Names of all queues that groups have to hold."""
    groups = list(names.configured_groups())
    return [config.name for group in groups for config in names.configured(group)]


@pytest.mark.parametrize("gone_first", [True, False])
@pytest.mark.parametrize("group", ["local-1", f"{EPHEMERAL}-1", "default"])
def test_a_queue_that_is_undeclared_leaves_nothing(
    names: QueueNames, group: str, gone_first: bool
) -> None:
    """Review finding 18: the configuration stayed of a queue whose group had lost it before."""
    before = configured(names), len(list(names.all()))
    for number in range(10):
        declare(names, f"q{number}", group)
        if gone_first:
            names.remove(f"q{number}")
        names.undeclare(f"q{number}")
        names.remove(f"q{number}")
    assert (configured(names), len(list(names.all()))) == before


def test_a_configuration_that_nobody_knows_the_queue_of_goes(names: QueueNames) -> None:
    """Review finding 18: it is found by its name, in whichever group."""
    declare(names, "q")
    names._queues.clear()
    names.undeclare("q")
    assert "q" not in configured(names)


def test_a_declared_queue_is_known_though_its_group_has_lost_the_one_before_it(
    names: QueueNames,
) -> None:
    """Review finding 2: a member that applies a deletion late would publish to a queue in memory."""
    declare(names, "q")
    names.undeclare("q")
    info = declare(names, "q")
    names.changed = False
    names.remove("q")  # the first one is gone here only now
    assert names.find("q") == info
    assert not names.changed
    names.undeclare("q")
    assert names.find("q") is None
    assert names.changed


def test_a_queue_of_the_settings_that_its_group_has_lost_is_unknown_until_it_is_there_again(
    names: QueueNames,
) -> None:
    info = names.info("configured")
    names.remove("configured")
    assert names.find("configured") is None
    names.add(info)
    assert names.find("configured") == info


def test_a_queue_that_only_its_group_knows_goes_with_it(names: QueueNames) -> None:
    names.add(QueueInfo("heard of", "local-1", QueueType.CLASSIC))
    names.remove("heard of")
    assert names.find("heard of") is None
