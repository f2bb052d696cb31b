"""Limits of a shard that follow from the settings, and those that are fixed, each with its reason."""

from __future__ import annotations

from fluxmq.protocols.mqtt.codec import Limits
from fluxmq.sessions.mqtt.ports import SessionLimits
from fluxmq.settings.schema import Settings

RECEIVE_BUFFER_BYTES = 256 * 1024
"""The shard's one receive buffer: large enough that a read of it amortises the system call over hundreds of
messages, small enough to stay in the second-level cache together with what is made of it."""
PENDING_CONNECTED_MAX = 100_000
"""Messages that may wait for a client that is connected but slow: the queue of an absent client is for hours
and small; this one rides out seconds at full rate, and its bytes are bounded by the same setting."""
CLIENT_ID_BYTES_MAX = 1024
"""Longest client id: it is a key in several tables and, later, of the metadata store."""


def session_limits(settings: Settings, workers: int) -> SessionLimits:
    """What sessions obey. The node's sessions are divided among its shards, with room for an uneven hash."""
    broker, session = settings.broker, settings.session
    share = session.max_sessions
    if workers > 1:
        share = share // workers + share // (4 * workers) + 16
    return SessionLimits(
        max_packet=broker.max_packet_size,
        max_qos=broker.max_qos,
        max_topic_bytes=broker.max_topic_bytes,
        max_topic_levels=broker.max_topic_levels,
        max_subscriptions=broker.max_subscriptions_per_session,
        max_will=broker.max_will_size,
        max_sessions=share,
        max_client_id=CLIENT_ID_BYTES_MAX,
        topic_alias_maximum=broker.topic_alias_maximum,
        topic_alias_maximum_out=broker.topic_alias_maximum_out,
        keep_alive_maximum=int(broker.keep_alive_maximum),
        default_expiry=int(session.default_expiry_interval),
        max_expiry=int(session.max_expiry_interval),
        max_inflight=session.max_inflight_messages,
        packets=Limits(
            max_user_properties=broker.max_user_properties,
            max_topic_bytes=broker.max_topic_bytes,
            max_topic_levels=broker.max_topic_levels,
            control_characters=broker.allow_control_characters,
        ),
        acknowledge_refused=broker.refused_publish == "acknowledge",
    )
