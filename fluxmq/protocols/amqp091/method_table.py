"""Wire layout of every method of AMQP 0.9.1.

Source: AMQP 0-9-1 section 1.4 (classes and methods), RabbitMQ 3.10's extensions.
"""

from __future__ import annotations

from typing import Final

from fluxmq.protocols.amqp091.method_types import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicCredit,
    BasicCreditDrained,
    BasicCreditOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
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
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)

Method = (
    ConnectionStart
    | ConnectionStartOk
    | ConnectionSecure
    | ConnectionSecureOk
    | ConnectionTune
    | ConnectionTuneOk
    | ConnectionOpen
    | ConnectionOpenOk
    | ConnectionClose
    | ConnectionCloseOk
    | ConnectionBlocked
    | ConnectionUnblocked
    | ConnectionUpdateSecret
    | ConnectionUpdateSecretOk
    | ChannelOpen
    | ChannelOpenOk
    | ChannelFlow
    | ChannelFlowOk
    | ChannelClose
    | ChannelCloseOk
    | AccessRequest
    | AccessRequestOk
    | ExchangeDeclare
    | ExchangeDeclareOk
    | ExchangeDelete
    | ExchangeDeleteOk
    | ExchangeBind
    | ExchangeBindOk
    | ExchangeUnbind
    | ExchangeUnbindOk
    | QueueDeclare
    | QueueDeclareOk
    | QueueBind
    | QueueBindOk
    | QueuePurge
    | QueuePurgeOk
    | QueueDelete
    | QueueDeleteOk
    | QueueUnbind
    | QueueUnbindOk
    | BasicQos
    | BasicQosOk
    | BasicConsume
    | BasicConsumeOk
    | BasicCancel
    | BasicCancelOk
    | BasicPublish
    | BasicReturn
    | BasicDeliver
    | BasicGet
    | BasicGetOk
    | BasicGetEmpty
    | BasicAck
    | BasicReject
    | BasicRecoverAsync
    | BasicRecover
    | BasicRecoverOk
    | BasicNack
    | BasicCredit
    | BasicCreditOk
    | BasicCreditDrained
    | ConfirmSelect
    | ConfirmSelectOk
    | TxSelect
    | TxSelectOk
    | TxCommit
    | TxCommitOk
    | TxRollback
    | TxRollbackOk
)

LAYOUTS: Final = (
    (10, 10, ConnectionStart, "B B F S S"),
    (10, 11, ConnectionStartOk, "F s S s"),
    (10, 20, ConnectionSecure, "S"),
    (10, 21, ConnectionSecureOk, "S"),
    (10, 30, ConnectionTune, "H I H"),
    (10, 31, ConnectionTuneOk, "H I H"),
    (10, 40, ConnectionOpen, "s -s -?"),
    (10, 41, ConnectionOpenOk, "-s"),
    (10, 50, ConnectionClose, "H s H H"),
    (10, 51, ConnectionCloseOk, ""),
    (10, 60, ConnectionBlocked, "s"),
    (10, 61, ConnectionUnblocked, ""),
    (10, 70, ConnectionUpdateSecret, "S s"),
    (10, 71, ConnectionUpdateSecretOk, ""),
    (20, 10, ChannelOpen, "-s"),
    (20, 11, ChannelOpenOk, "-S"),
    (20, 20, ChannelFlow, "?"),
    (20, 21, ChannelFlowOk, "?"),
    (20, 40, ChannelClose, "H s H H"),
    (20, 41, ChannelCloseOk, ""),
    (30, 10, AccessRequest, "s ? ? ? ? ?"),
    (30, 11, AccessRequestOk, "H"),
    (40, 10, ExchangeDeclare, "-H s s ? ? ? ? ? F"),
    (40, 11, ExchangeDeclareOk, ""),
    (40, 20, ExchangeDelete, "-H s ? ?"),
    (40, 21, ExchangeDeleteOk, ""),
    (40, 30, ExchangeBind, "-H s s s ? F"),
    (40, 31, ExchangeBindOk, ""),
    (40, 40, ExchangeUnbind, "-H s s s ? F"),
    (40, 51, ExchangeUnbindOk, ""),
    (50, 10, QueueDeclare, "-H s ? ? ? ? ? F"),
    (50, 11, QueueDeclareOk, "s I I"),
    (50, 20, QueueBind, "-H s s s ? F"),
    (50, 21, QueueBindOk, ""),
    (50, 30, QueuePurge, "-H s ?"),
    (50, 31, QueuePurgeOk, "I"),
    (50, 40, QueueDelete, "-H s ? ? ?"),
    (50, 41, QueueDeleteOk, "I"),
    (50, 50, QueueUnbind, "-H s s s F"),
    (50, 51, QueueUnbindOk, ""),
    (60, 10, BasicQos, "I H ?"),
    (60, 11, BasicQosOk, ""),
    (60, 20, BasicConsume, "-H s s ? ? ? ? F"),
    (60, 21, BasicConsumeOk, "s"),
    (60, 30, BasicCancel, "s ?"),
    (60, 31, BasicCancelOk, "s"),
    (60, 40, BasicPublish, "-H s s ? ?"),
    (60, 50, BasicReturn, "H s s s"),
    (60, 60, BasicDeliver, "s Q ? s s"),
    (60, 70, BasicGet, "-H s ?"),
    (60, 71, BasicGetOk, "Q ? s s I"),
    (60, 72, BasicGetEmpty, "-s"),
    (60, 80, BasicAck, "Q ?"),
    (60, 90, BasicReject, "Q ?"),
    (60, 100, BasicRecoverAsync, "?"),
    (60, 110, BasicRecover, "?"),
    (60, 111, BasicRecoverOk, ""),
    (60, 120, BasicNack, "Q ? ?"),
    (60, 200, BasicCredit, "s I ?"),
    (60, 201, BasicCreditOk, "I"),
    (60, 202, BasicCreditDrained, "s I"),
    (85, 10, ConfirmSelect, "?"),
    (85, 11, ConfirmSelectOk, ""),
    (90, 10, TxSelect, ""),
    (90, 11, TxSelectOk, ""),
    (90, 20, TxCommit, ""),
    (90, 21, TxCommitOk, ""),
    (90, 30, TxRollback, ""),
    (90, 31, TxRollbackOk, ""),
)
"""Class, method, tuple and fields in order.

``B`` octet, ``H`` short, ``I`` long, ``Q`` long long, ``s`` short string, ``S`` long string, ``F``
field table, ``?`` bit; with a leading dash a reserved field, which is written empty and skipped.
"""
