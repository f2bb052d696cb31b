"""Exchanges and bindings: what is answered, in RabbitMQ 3.10's words."""

from __future__ import annotations

import pytest

from fluxmq.protocols.amqp091.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueUnbind,
    QueueUnbindOk,
)
from tests.unit.sessions.amqp091.scripts import Script, check, closed, ended, named

DEFAULT = "operation not permitted on the default exchange"

BINDINGS = [
    Script(
        "bind, unnamed",
        [QueueBind("", "amq.direct", "k")],
        [closed(404, "no previously declared queue", QueueBind)],
    ),
    Script(
        "bind, no queue",
        [QueueBind("nope", "amq.direct", "k")],
        [closed(404, "no queue 'nope' in vhost '/'", QueueBind)],
    ),
    Script(
        "bind, no exchange",
        [QueueDeclare("q"), QueueBind("q", "nope", "k")],
        [QueueDeclareOk("q", 0, 0), closed(404, "no exchange 'nope' in vhost '/'", QueueBind)],
    ),
    Script(
        "bind to the default exchange",
        [QueueDeclare("q"), QueueBind("q", "", "k")],
        [QueueDeclareOk("q", 0, 0), closed(403, DEFAULT, QueueBind)],
    ),
    Script(
        "bind twice, unbind twice",
        [
            QueueDeclare("q"),
            QueueBind("q", "amq.direct", "k"),
            QueueBind("q", "amq.direct", "k"),
            QueueUnbind("q", "amq.direct", "k"),
            QueueUnbind("q", "amq.direct", "k"),
        ],
        [QueueDeclareOk("q", 0, 0), QueueBindOk(), QueueBindOk(), QueueUnbindOk(), QueueUnbindOk()],
    ),
    Script("unbind, no queue", [QueueUnbind("nope", "amq.direct", "k")], [QueueUnbindOk()]),
    Script(
        "unbind, no exchange",
        [QueueDeclare("q"), QueueUnbind("q", "nope", "k")],
        [QueueDeclareOk("q", 0, 0), QueueUnbindOk()],
    ),
    Script(
        "unbind from the default exchange",
        [QueueDeclare("q"), QueueUnbind("q", "", "q")],
        [QueueDeclareOk("q", 0, 0), closed(403, DEFAULT, QueueUnbind)],
    ),
    Script(
        "exchange to exchange",
        [
            ExchangeBind("amq.direct", "amq.fanout", "k"),
            ExchangeUnbind("amq.direct", "amq.fanout", "k"),
            ExchangeUnbind("amq.direct", "amq.fanout", "k"),
        ],
        [ExchangeBindOk(), ExchangeUnbindOk(), ExchangeUnbindOk()],
    ),
    Script(
        "exchange to exchange, without waiting",
        [
            ExchangeBind("amq.direct", "amq.fanout", "k", no_wait=True),
            ExchangeUnbind("amq.direct", "amq.fanout", "k", no_wait=True),
        ],
        [],
    ),
    Script(
        "exchange to exchange, no destination",
        [ExchangeBind("nope", "amq.direct", "k")],
        [closed(404, "no exchange 'nope' in vhost '/'", ExchangeBind)],
    ),
    Script(
        "exchange to exchange, no source",
        [ExchangeBind("amq.direct", "nope", "k")],
        [closed(404, "no exchange 'nope' in vhost '/'", ExchangeBind)],
    ),
    Script(
        "exchange to exchange, default destination",
        [ExchangeBind("", "amq.direct", "k")],
        [closed(403, DEFAULT, ExchangeBind)],
    ),
    Script(
        "exchange to exchange, default source",
        [ExchangeBind("amq.direct", "", "k")],
        [closed(403, DEFAULT, ExchangeBind)],
    ),
]

EXCHANGES = [
    Script(
        "declare, again, delete, again",
        [
            ExchangeDeclare("e", "fanout"),
            ExchangeDeclare("e", "fanout"),
            ExchangeDeclare("e", "fanout", passive=True),
            ExchangeDelete("e"),
            ExchangeDelete("e"),
        ],
        [
            ExchangeDeclareOk(),
            ExchangeDeclareOk(),
            ExchangeDeclareOk(),
            ExchangeDeleteOk(),
            ExchangeDeleteOk(),
        ],
    ),
    Script(
        "without waiting",
        [ExchangeDeclare("e", "fanout", no_wait=True), ExchangeDelete("e", no_wait=True)],
        [],
    ),
    Script("default", [ExchangeDeclare("", "direct")], [closed(403, DEFAULT, ExchangeDeclare)]),
    Script(
        "default, passive",
        [ExchangeDeclare("", "direct", passive=True)],
        [closed(403, DEFAULT, ExchangeDeclare)],
    ),
    Script(
        "reserved",
        [ExchangeDeclare("amq.foo", "direct")],
        [closed(403, "exchange name 'amq.foo' contains reserved prefix 'amq.*'", ExchangeDeclare)],
    ),
    Script(
        "reserved, passive",
        [ExchangeDeclare("amq.foo", "direct", passive=True)],
        [closed(404, "no exchange 'amq.foo' in vhost '/'", ExchangeDeclare)],
    ),
    Script(
        "of the broker, equal",
        [ExchangeDeclare("amq.direct", "direct", durable=True)],
        [ExchangeDeclareOk()],
    ),
    Script(
        "of the broker, as another",
        [ExchangeDeclare("amq.direct", "fanout", durable=True)],
        [
            closed(
                406,
                "inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'fanout' but current is "
                "'direct'",
                ExchangeDeclare,
            )
        ],
    ),
    Script(
        "passive does not look at the type",
        [ExchangeDeclare("amq.direct", "nonsense", passive=True)],
        [ExchangeDeclareOk()],
    ),
    Script(
        "unknown type",
        [ExchangeDeclare("e", "nonsense")],
        [ended(503, "unknown exchange type 'nonsense'", ExchangeDeclare)],
    ),
    Script(
        "delete the default",
        [ExchangeDelete("")],
        [closed(403, DEFAULT, ExchangeDelete)],
    ),
    Script(
        "delete one of the broker's",
        [ExchangeDelete("amq.direct")],
        [
            closed(
                403,
                "deletion of system exchange 'amq.direct' in vhost '/' not allowed",
                ExchangeDelete,
            )
        ],
    ),
    Script(
        "delete if-unused",
        [
            ExchangeDeclare("e", "fanout"),
            QueueDeclare("q"),
            QueueBind("q", "e"),
            ExchangeDelete("e", if_unused=True),
        ],
        [
            ExchangeDeclareOk(),
            QueueDeclareOk("q", 0, 0),
            QueueBindOk(),
            closed(406, "exchange 'e' in vhost '/' in use", ExchangeDelete),
        ],
    ),
]


@pytest.mark.parametrize(**named(BINDINGS))
def test_bindings(script: Script) -> None:
    check(script)


@pytest.mark.parametrize(**named(EXCHANGES))
def test_exchanges(script: Script) -> None:
    check(script)
