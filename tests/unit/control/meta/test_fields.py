"""Fields of frames between control processes: every ill-formed one is refused by name."""

import pytest

from fluxmq.control.meta.fields import Fields
from fluxmq.ipc.messages import MessageError


def test_fields_name_what_is_wrong():
    fields = Fields({"a": 1, "b": b"xx", "c": [1], "d": "x"}, "thing")
    with pytest.raises(MessageError, match=r"thing\.e is missing"):
        fields.text("e")
    with pytest.raises(MessageError, match=r"thing\.b is not a string of at most 1 bytes"):
        fields.data("b", 1)
    with pytest.raises(MessageError, match=r"thing\.c is not a list of at most 0"):
        fields.items("c", 0)
    with pytest.raises(MessageError, match=r"thing\.a is not true or false"):
        fields.boolean("a")
    with pytest.raises(MessageError, match="thing is not a map"):
        Fields([], "thing")
    with pytest.raises(MessageError, match=r"thing\.a is not a text"):
        fields.text("a")
    with pytest.raises(MessageError, match=r"thing\.a is not an integer from 2 to 3"):
        fields.integer("a", 2, 3)
    assert (fields.optional("e"), fields.integer("a"), fields.text("d")) == (None, 1, "x")
