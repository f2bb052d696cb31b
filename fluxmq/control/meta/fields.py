"""Checked access to the fields of a frame between control processes."""

from __future__ import annotations

from collections.abc import Mapping

from fluxmq.ipc.messages import TEXT_CHARACTERS_MAX, Body, MessageError


class Fields:
    """Typed, checked access to one body; every method raises MessageError naming the message and
    the field."""

    __slots__ = ("_body", "_of")

    def __init__(self, body: object, of: str) -> None:
        if not isinstance(body, Mapping):
            raise MessageError(f"{of} is not a map")
        self._body: Body = body
        self._of = of

    @property
    def body(self) -> Body:
        """The underlying map."""
        return self._body

    def _get(self, name: str) -> object:
        try:
            return self._body[name]
        except KeyError:
            raise MessageError(f"{self._of}.{name} is missing") from None

    def text(self, name: str, limit: int = TEXT_CHARACTERS_MAX) -> str:
        """Return a text of at most `limit` characters."""
        value = self._get(name)
        if not isinstance(value, str) or len(value) > limit:
            raise MessageError(f"{self._of}.{name} is not a text of at most {limit} characters")
        return value

    def data(self, name: str, limit: int) -> bytes:
        """Return bytes, at most `limit`."""
        value = self._get(name)
        if not isinstance(value, bytes) or len(value) > limit:
            raise MessageError(f"{self._of}.{name} is not a string of at most {limit} bytes")
        return value

    def integer(self, name: str, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return an integer from `low` to `high`."""
        value = self._get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise MessageError(f"{self._of}.{name} is not an integer from {low} to {high}")
        return value

    def boolean(self, name: str) -> bool:
        """Return a boolean."""
        value = self._get(name)
        if not isinstance(value, bool):
            raise MessageError(f"{self._of}.{name} is not true or false")
        return value

    def items(self, name: str, limit: int) -> list[object]:
        """Return a list of at most `limit` values of any kind."""
        value = self._get(name)
        if not isinstance(value, list | tuple) or len(value) > limit:
            raise MessageError(f"{self._of}.{name} is not a list of at most {limit}")
        return list(value)

    def optional(self, name: str) -> object:
        """Return the field's value, or None when it is absent."""
        return self._body.get(name)
