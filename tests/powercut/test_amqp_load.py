"""What AMQP's answers mean for the history: ranges, refusals, transactions. The broker is a list of what was sent."""

from __future__ import annotations

import random

from tests.differential.wire import Method
from tests.powercut.amqp_load import TRANSACTIONS, Confirmed, Transactional
from tests.powercut.history import History
from tests.powercut.node import WORK


class Broker:
    """Takes what a client says; answers come from the test."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self.ends: list[str] = []

    def publish(self, queue: str, body: bytes) -> None:
        self.published.append(queue)

    def method(self, name: str) -> None:
        self.ends.append(name)


def confirm(name: str, tag: int, multiple: bool = False) -> Method:
    return Method(name, {"delivery_tag": tag, "multiple": multiple})


def test_confirms_come_singly_and_as_ranges() -> None:
    history, broker = History(1), Broker()
    history.begin(31, WORK)
    publisher = Confirmed(broker, history, 31, WORK, 4)  # type: ignore[arg-type]
    for _ in range(4):
        publisher.send()
    publisher.answered(confirm("basic.ack", 2))
    assert history.publishers[31].confirmed == {1}
    publisher.answered(confirm("basic.ack", 4, multiple=True))
    assert history.publishers[31].confirmed == {0, 1, 2, 3}
    assert sorted(publisher.under_way) == [5, 6, 7, 8]
    assert broker.published == [WORK] * 8


def test_a_refused_message_may_be_there_all_the_same() -> None:
    history, broker = History(1), Broker()
    history.begin(31, WORK)
    publisher = Confirmed(broker, history, 31, WORK, 1)  # type: ignore[arg-type]
    publisher.send()
    publisher.answered(confirm("basic.nack", 1))
    sent = history.publishers[31]
    assert (sent.confirmed, sent.refused, sent.failed) == (set(), set(), {0})


def test_a_transaction_is_confirmed_or_refused_whole() -> None:
    history, broker = History(1), Broker()
    for queue, number in TRANSACTIONS.items():
        history.begin(number, queue)
    client = Transactional(broker, history, random.Random(5))  # type: ignore[arg-type]
    ends = {"tx.commit": 0, "tx.rollback": 0}
    client.send()
    for _ in range(60):
        end = broker.ends[-1]
        ends[end] += len(client.under_way)
        client.answered(Method(f"{end}-ok", {}))
    confirmed = sum(len(history.publishers[number].confirmed) for number in TRANSACTIONS.values())
    refused = sum(len(history.publishers[number].refused) for number in TRANSACTIONS.values())
    assert (confirmed, refused) == (ends["tx.commit"], ends["tx.rollback"])
    assert confirmed > refused > 0
    assert history.violations == []


def test_another_answer_breaks_a_rule() -> None:
    history, broker = History(1), Broker()
    for queue, number in TRANSACTIONS.items():
        history.begin(number, queue)
    client = Transactional(broker, history, random.Random(5))  # type: ignore[arg-type]
    client.send()
    client.answered(Method("basic.ack", {"delivery_tag": 1, "multiple": False}))
    assert history.broken > 0
