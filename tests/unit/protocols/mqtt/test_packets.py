"""Packets as values: slotted, comparable, and no two share their properties."""

import dataclasses

import pytest

from fluxmq.protocols.mqtt import packets

CLASSES = [
    each
    for each in vars(packets).values()
    if isinstance(each, type) and each.__module__ == packets.__name__
]


@pytest.mark.parametrize("packet", CLASSES, ids=lambda each: each.__name__)
def test_is_a_slotted_dataclass(packet: type) -> None:
    assert dataclasses.is_dataclass(packet)
    assert not hasattr(packet, "__dict__") or "__dict__" not in dir(packet)
    assert "__slots__" in vars(packet)


def test_default_properties_are_not_shared() -> None:
    first, second = packets.Puback(1), packets.Puback(1)
    first.properties.user_properties.append(("a", "b"))
    assert second.properties.user_properties == []
    assert first != second
