"""SASLprep: RFC 4013's own examples, and what must be refused."""

import pytest

from fluxmq.auth.saslprep import saslprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        # RFC 4013 section 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        # mapped to a space, and normal forms
        ("a\u00a0b", "a b"),
        ("e\u0301", "é"),
        ("", ""),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_prepared(text, prepared):
    assert saslprep(text) == prepared


@pytest.mark.parametrize(
    "text",
    [
        "\u0007",  # RFC 4013: prohibited character
        "\u0627\u0031",  # RFC 4013: bidirectional check
        "\u0627a\u0628",  # mixed directions
        "a\x00",
        "\ue000",  # private use
        "\ud800",  # surrogate
        "\U000e0001",  # tagging
        "\u0221",  # unassigned in Unicode 3.2
    ],
)
def test_refused(text):
    with pytest.raises(ValueError, match=r"not allowed|unassigned|right-to-left"):
        saslprep(text)
