"""The fixed limits, each with its reason; limits for the operator are in ``fluxmq.settings``
instead.

They bound the settings. Relations between them are asserted when the module is imported, so that a
change that breaks one stops every process and every test.
"""

from __future__ import annotations

from typing import Final

MQTT_STRING_BYTES_MAX: Final = 65_535
"""Bytes of a UTF-8 string or binary field: its length is two bytes on the wire (MQTT 5.0 section
1.5.4)."""

MQTT_REMAINING_LENGTH_MAX: Final = 268_435_455
"""Bytes after the fixed header: four bytes of seven bits (MQTT 5.0 section 1.5.5)."""

MQTT_PACKET_BYTES_MAX: Final = 1 + 4 + MQTT_REMAINING_LENGTH_MAX
"""The largest encodable packet: type byte, length, body."""

MQTT_PACKET_ID_MAX: Final = 65_535
"""Packet identifiers in flight per direction: two bytes, zero not allowed (MQTT 5.0 section
2.2.1)."""

MQTT_TOPIC_ALIAS_MAX: Final = 65_535
"""Topic aliases per direction: two bytes, zero not allowed (MQTT 5.0 section 3.3.2.3.4)."""

MQTT_KEEP_ALIVE_SECONDS_MAX: Final = 65_535
"""Keep alive is two bytes of seconds (MQTT 5.0 section 3.1.2.10)."""

MQTT_EXPIRY_SECONDS_MAX: Final = 0xFFFF_FFFF
"""Session expiry is four bytes of seconds; this value means never (MQTT 5.0 section 3.1.2.11.2)."""

PORT_MAX: Final = 65_535
"""TCP ports are two bytes; 0 would mean "any", which a client could not find."""

SETTINGS_FILE_BYTES_MAX: Final = 1 << 20
"""Settings files are written by hand: a megabyte is the wrong file, not a long one."""

SETTINGS_NODES_MAX: Final = 50_000
"""Values in a settings file after aliases are followed, so that nested aliases cannot multiply
without bound."""

SECRET_FILE_BYTES_MAX: Final = 64 << 10
"""Size of a file that holds one secret: passwords and keys are far smaller."""

assert MQTT_STRING_BYTES_MAX < MQTT_REMAINING_LENGTH_MAX
assert MQTT_PACKET_ID_MAX == MQTT_TOPIC_ALIAS_MAX == MQTT_STRING_BYTES_MAX == 0xFFFF
assert SECRET_FILE_BYTES_MAX < SETTINGS_FILE_BYTES_MAX
