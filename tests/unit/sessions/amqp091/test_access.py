"""Queues, exchanges and bindings that a user has no permission for: what is answered, in RabbitMQ 3.10's words."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.methods import (
    BasicConsume,
    BasicGet,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
)
from tests.unit.sessions.amqp091.scripts import Script, check, closed, named

ACCESS = [
    Script(
        "declare a queue",
        [QueueDeclare("a")],
        [closed(403, "access to queue 'a' in vhost '/' refused for user 'bob'", QueueDeclare)],
    ),
    Script(
        "passive needs nothing",
        [QueueDeclare("a", passive=True)],
        [closed(404, "no queue 'a' in vhost '/'", QueueDeclare)],
    ),
    Script(
        "declare a server-named queue",
        [QueueDeclare("")],
        [
            closed(
                403,
                "access to queue 'amq.gen-0000000000000000000002' in vhost '/' refused for user 'bob'",
                QueueDeclare,
            )
        ],
    ),
    Script(
        "bind: the source",
        [QueueDeclare("bq"), QueueBind("bq", "amq.direct")],
        [
            QueueDeclareOk("bq", 0, 0),
            closed(
                403,
                "access to exchange 'amq.direct' in vhost '/' refused for user 'bob'",
                QueueBind,
            ),
        ],
    ),
    Script(
        "bind: the topic",
        [ExchangeDeclare("bt", "topic"), QueueDeclare("bq"), QueueBind("bq", "bt", "no")],
        [
            ExchangeDeclareOk(),
            QueueDeclareOk("bq", 0, 0),
            closed(
                403,
                "access to topic 'no' in exchange 'bt' in vhost '/' refused for user 'bob'",
                QueueBind,
            ),
        ],
    ),
    Script(
        "bind: all of it",
        [ExchangeDeclare("bt", "topic"), QueueDeclare("bq"), QueueBind("bq", "bt", "ok")],
        [ExchangeDeclareOk(), QueueDeclareOk("bq", 0, 0), QueueBindOk()],
    ),
    Script(
        "consume",
        [BasicConsume("q")],
        [closed(403, "access to queue 'q' in vhost '/' refused for user 'bob'", BasicConsume)],
    ),
    Script(
        "get",
        [BasicGet("zz")],
        [closed(403, "access to queue 'zz' in vhost '/' refused for user 'bob'", BasicGet)],
    ),
    Script(
        "purge",
        [QueuePurge("q")],
        [closed(403, "access to queue 'q' in vhost '/' refused for user 'bob'", QueuePurge)],
    ),
    Script(
        "delete a queue",
        [QueueDelete("q")],
        [closed(403, "access to queue 'q' in vhost '/' refused for user 'bob'", QueueDelete)],
    ),
    Script(
        "declare an exchange",
        [ExchangeDeclare("ax", "topic")],
        [
            closed(
                403, "access to exchange 'ax' in vhost '/' refused for user 'bob'", ExchangeDeclare
            )
        ],
    ),
    Script(
        "delete an exchange",
        [ExchangeDelete("ax")],
        [
            closed(
                403, "access to exchange 'ax' in vhost '/' refused for user 'bob'", ExchangeDelete
            )
        ],
    ),
    Script(
        "alternate exchange",
        [ExchangeDeclare("be", "fanout", arguments={"alternate-exchange": "amq.fanout"})],
        [
            closed(
                403,
                "access to exchange 'amq.fanout' in vhost '/' refused for user 'bob'",
                ExchangeDeclare,
            )
        ],
    ),
    Script(
        "dead-letter exchange",
        [QueueDeclare("bq", arguments={"x-dead-letter-exchange": "amq.fanout"})],
        [
            closed(
                403,
                "access to exchange 'amq.fanout' in vhost '/' refused for user 'bob'",
                QueueDeclare,
            )
        ],
    ),
    Script(
        "exchange to exchange: the source",
        [ExchangeBind("bb", "amq.fanout")],
        [
            closed(
                403,
                "access to exchange 'amq.fanout' in vhost '/' refused for user 'bob'",
                ExchangeBind,
            )
        ],
    ),
    Script(
        "exchange to exchange: the destination",
        [ExchangeBind("amq.fanout", "bb")],
        [
            closed(
                403,
                "access to exchange 'amq.fanout' in vhost '/' refused for user 'bob'",
                ExchangeBind,
            )
        ],
    ),
]


@pytest.mark.parametrize(**named(ACCESS))
def test_access(script: Script) -> None:
    check(script._replace(user="bob"))
