"""The scalar values of a settings file: durations, sizes, addresses, secrets, topic filters.

Each has one notation for people (``1h30m``, ``64KiB``, ``127.0.0.1:1883``) and one plain value for
the program (float seconds, int bytes, text). A plain value is accepted as it is, because effective
settings go to the child processes as JSON; in a file a duration needs its unit, since some readers
take a bare 1000 as seconds and others as milliseconds.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from fluxmq.model.limits import MQTT_STRING_BYTES_MAX, PORT_MAX

REDACTED: Final = "********"
"""Text shown in place of a secret."""

FROM_FILE: Final = {"from": "file"}
"""Validation context of values that a person wrote, as opposed to effective settings given to a
child."""

_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_SIZE_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|KiB|MiB|GiB|TiB)")
_DECIMAL_SIZE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)? ?([kKmMgGtT][bB]?)")
_INFORMATION: Final = re.compile(r"([0-9]+) ?((?:[kKmMgGtT](?:i?B)?)?)")
_HOST_NAME: Final = re.compile(
    r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?"
)


def parse_duration(text: str) -> float:
    """Return the seconds in ``5s``, ``20ms``, ``1h30m`` or ``7d``. Raises ValueError with a
    sentence for the user."""
    position, seconds, last = 0, 0.0, float("inf")
    for part in _DURATION_PART.finditer(text):
        unit = _DURATION_UNITS[part[2]]
        if part.start() != position or unit >= last:
            break
        seconds += float(part[1]) * unit
        position, last = part.end(), unit
    if not text or position != len(text):
        raise ValueError("is not a duration; write it like 5s, 20ms, 1h30m or 7d")
    return round(seconds, 6)


def format_duration(seconds: float) -> str:
    """Return the shortest text that ``parse_duration`` reads as this many seconds, to the
    microsecond."""
    if seconds == 0:
        return "0s"
    rest, text = round(seconds, 6), ""
    for name, unit in (("d", 86400), ("h", 3600), ("m", 60)):
        count, rest = divmod(rest, unit)
        text += f"{int(count)}{name}" if count else ""
    rest = round(rest, 6)
    if not rest:
        return text
    if text or rest >= 1:
        return f"{text}{rest:.6f}".rstrip("0").rstrip(".") + "s"
    return f"{rest * 1000:.3f}".rstrip("0").rstrip(".") + "ms"


def parse_size(text: str) -> int:
    """Return the bytes in ``512``, ``8KiB`` or ``1.5MiB``. Raises ValueError with a sentence for
    the user."""
    if text.isascii() and text.isdigit():
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        if decimal := _DECIMAL_SIZE.fullmatch(text):
            raise ValueError(f"is not a size; sizes are binary: {decimal[1][0].upper()}iB")
        raise ValueError("is not a size; write bytes, or like 8KiB, 1MiB or 2GiB")
    size = float(match[1]) * _SIZE_UNITS[match[2]]
    if not size.is_integer():
        raise ValueError("is not a whole number of bytes")
    return int(size)


def parse_throughput(text: str) -> int:
    """Return the bytes in ``500000``, ``10MB`` or ``8MiB``: RabbitMQ's units, of which kB, MB, GB and TB
    are decimal. Raises ValueError with a sentence for the user."""
    match = _INFORMATION.fullmatch(text)
    if match is None:
        raise ValueError("is not a throughput; write bytes per second, or like 500kB, 10MB or 8MiB")
    unit = match[2]
    base = 1000 if unit.endswith("B") and "i" not in unit else 1024
    factor: int = base ** ("kmgt".index(unit[0].lower()) + 1 if unit else 0)
    return int(match[1]) * factor


def format_size(size: int) -> str:
    """Return the shortest exact text for this many bytes; ``parse_size`` reads it back."""
    for name, unit in reversed(_SIZE_UNITS.items()):
        if size >= unit and size % unit == 0 and unit > 1:
            return f"{size // unit}{name}"
    return str(size)


def split_address(text: str) -> tuple[str, int]:
    """Split ``host:port``, ``:port`` (every interface: empty host) or ``[ipv6]:port`` into host and
    port.

    Raises ValueError with a sentence for the user.
    """
    host, colon, port_text = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        raise ValueError('is not an address; write it as "host:port", ":port" or "[ipv6]:port"')
    if not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text) <= PORT_MAX):
        raise ValueError(f"has no usable port; it is 1 to {PORT_MAX}")
    if host.startswith("["):
        try:
            inside = host[1:].removesuffix("]") if host.endswith("]") else ""
            return str(ipaddress.IPv6Address(inside)), int(port_text)
        except ValueError:
            raise ValueError(f"has {host}, which is not an IPv6 address in brackets") from None
    if host and not _is_host(host):
        raise ValueError(f"has {host!r}, which is neither an IPv4 address nor a host name")
    return host, int(port_text)


def _is_host(host: str) -> bool:
    if re.fullmatch(r"[0-9.]+", host):  # only digits and dots: meant as IPv4, never a name
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return False
        return True
    return _HOST_NAME.fullmatch(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener on this host; false for names other
    than localhost."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def addresses_clash(one: str, other: str) -> bool:
    """Return whether listeners on these addresses exclude each other, wildcards considered."""
    (host, port), (other_host, other_port) = split_address(one), split_address(other)
    if port != other_port:
        return False
    return any(
        a == b or "*" in (a, b) or (a == "*4" and ":" not in b) or (b == "*4" and ":" not in a)
        for a in _interfaces(host)
        for b in _interfaces(other_host)
    )


def _interfaces(host: str) -> set[str]:
    """Return what a host binds: ``*`` every interface, ``*4`` every IPv4 one, else addresses or the
    name itself."""
    if host.rstrip(".").lower() == "localhost":
        return {"127.0.0.1", "::1"}
    if host in ("", "::"):
        return {"*"}
    if host == "0.0.0.0":
        return {"*4"}
    return {host.lower()}


def check_filter(text: str) -> str:
    """Return the topic filter if MQTT allows it (5.0 section 4.7). Raises ValueError with a
    sentence."""
    if not text or "\0" in text:
        raise ValueError("is not a topic filter; it may not be empty or hold a NUL")
    if len(text.encode()) > MQTT_STRING_BYTES_MAX:
        raise ValueError(f"is longer than {MQTT_STRING_BYTES_MAX} bytes")
    levels = text.split("/")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise ValueError("is not a topic filter; # stands alone in the last level")
    if any("+" in level and level != "+" for level in levels):
        raise ValueError("is not a topic filter; + stands alone in its level")
    return text


class Secret:
    """A text that is never printed: ``repr`` and ``str`` hide it, ``reveal()`` returns it.

    Pydantic's JSON does contain it, because that is how the supervisor passes effective settings to
    its children (through a private memory file, never the command line or a log).
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({REDACTED!r})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls.reveal, when_used="json"
            ),
        )

    @classmethod
    def _validate(cls, value: object) -> Secret:
        if isinstance(value, Secret):
            return value
        if not isinstance(value, str) or not value:
            raise ValueError("must be a non-empty string")
        return cls(value)


def _from_file(info: ValidationInfo) -> bool:
    return info.context is not None and info.context == FROM_FILE


def _duration(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str):
        return parse_duration(value)
    if (
        _from_file(info)
        and value != 0
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        raise ValueError(f"needs a unit, such as {value}s or {value}ms")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise ValueError("is not a duration; write it like 5s, 20ms, 1h30m or 7d")


def _size(value: object) -> object:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("is not a size; write bytes, or like 8KiB, 1MiB or 2GiB")


def _throughput(value: object) -> object:
    return parse_throughput(value) if isinstance(value, str) else _size(value)


def _address(text: str) -> str:
    split_address(text)
    return text


class ScalarKind:
    """Marks a field as one of the kinds below, for printing settings and their documentation."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


Duration = Annotated[float, BeforeValidator(_duration), ScalarKind("duration")]
"""Seconds."""

Size = Annotated[int, BeforeValidator(_size), ScalarKind("size")]
"""Bytes."""

Throughput = Annotated[int, BeforeValidator(_throughput), ScalarKind("size")]
"""Bytes per second, also in RabbitMQ's units."""

Address = Annotated[str, AfterValidator(_address), ScalarKind("address")]
"""``host:port``; see ``split_address``."""

FilePath = Annotated[str, ScalarKind("file")]
"""Path of a file that must exist and be readable, relative to the working directory."""

TopicFilter = Annotated[str, AfterValidator(check_filter), ScalarKind("topic filter")]
"""An MQTT topic filter."""


def _announced(text: str) -> str:
    if not 1 <= len(text) <= ANNOUNCED_MAX or not (text.isascii() and text.isprintable()):
        raise ValueError(f"is not 1 to {ANNOUNCED_MAX} printable ASCII characters")
    return text


def _version(text: str) -> str:
    numbers = text.split(".")
    known = 2 <= len(numbers) <= 4 and all(
        number.isascii() and number.isdigit() and len(number) <= VERSION_DIGITS_MAX
        for number in numbers
    )
    if not known:
        raise ValueError("is not a version; write two to four numbers, like 3.10.8")
    return text


ANNOUNCED_MAX = 64
"""Maximum length of a name that clients are greeted with, in characters: ample for any product
name."""

VERSION_DIGITS_MAX = 9
"""Maximum digits in one number of a version: clients parse them into 32 bits."""

Announced = Annotated[str, AfterValidator(_announced)]
"""A name that clients are greeted with."""

Version = Annotated[str, AfterValidator(_version), ScalarKind("version")]
"""Numbers separated by dots, as clients compare them."""


def microseconds(seconds: float) -> int:
    """Convert a duration of the settings to the µs of logs and state machines."""
    return round(seconds * 1_000_000)
