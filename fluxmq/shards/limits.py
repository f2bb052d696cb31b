"""Limits of a shard, derived from the settings or fixed, each with its reason."""

from __future__ import annotations

from fluxmq.auth.logins import OAUTH2
from fluxmq.protocols.mqtt.codec import Limits
from fluxmq.sessions.mqtt.ports import SessionLimits
from fluxmq.settings.schema import Settings

RECEIVE_BUFFER_BYTES = 256 * 1024
"""Size of the shard's one receive buffer: large enough to amortise the system call over hundreds of
messages, small enough to fit the second-level cache with the objects made from it."""
PENDING_CONNECTED_MAX = 100_000
"""Maximum number of pending messages of a connected but slow client: an absent client's queue is
for hours and small; this one covers seconds at full rate, and the same setting bounds its bytes."""
CLIENT_ID_BYTES_MAX = 1024
"""Maximum length of a client id: it is a key in several tables."""


def session_limits(settings: Settings, workers: int) -> SessionLimits:
    """Return the limits of sessions. Shards divide the node's sessions, with room for an uneven
    hash."""
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
        tokens=OAUTH2 in settings.auth.backends,
    )
