"""An issuer's keys: what a set may hold, and when it is fetched again."""

from __future__ import annotations

import asyncio
import json

import pytest

from fluxmq.control.logins.backend import AskLaterError, BackendError
from fluxmq.control.logins.keys import KEYS_MAX, REFETCH_SECONDS, IssuerKeys, KeysError, read_keys
from tests.issuer import SigningKey, document, signing_key

FIRST, SECOND = signing_key("first", "EC"), signing_key("second", "OKP")
SHARED = {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"}


def test_keys_that_cannot_verify_are_left_out() -> None:
    public = FIRST.public()
    listed = [
        public,
        SHARED,
        {**public, "kid": "sealing", "use": "enc"},
        {**public, "kid": "broken", "x": "?"},
        {**public, "kid": 7},
        {"kty": "RSA", "kid": "empty"},
        "text",
    ]
    assert list(read_keys(json.dumps({"keys": listed}).encode())) == ["first"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": {}}', "<html>", "null"])
def test_what_is_no_set_of_keys(text: str) -> None:
    with pytest.raises(KeysError):
        read_keys(text.encode())


def test_a_set_is_bounded() -> None:
    many = {"keys": [SHARED] * (KEYS_MAX + 1)}
    with pytest.raises(KeysError, match=str(KEYS_MAX)):
        read_keys(json.dumps(many).encode())


class Source:
    """An issuer on a clock: fresh after 300 s, usable for 3600 s."""

    def __init__(self, *keys: SigningKey) -> None:
        self.served = keys
        self.away = False
        self.now = 1000.0
        self.keys = IssuerKeys(self.read, 300.0, 3600.0, lambda: self.now)

    async def read(self) -> bytes:
        """The document, unless it is away."""
        await asyncio.sleep(0)
        if self.away:
            raise BackendError("no answer")
        return document(*self.served)

    def find(self, name: str) -> bool:
        """Whether a key is known."""
        return asyncio.run(self.keys.key(name)) is not None


def test_a_new_key_is_fetched_when_a_token_names_it() -> None:
    source = Source(FIRST)
    assert source.find("first")
    assert source.find("first")
    assert source.keys.fetches == 1
    source.served = (SECOND,)
    with pytest.raises(AskLaterError):
        source.find("second")
    source.now += REFETCH_SECONDS
    assert source.find("second")
    assert not source.keys.fetches > 2
    source.now += REFETCH_SECONDS
    assert not source.find("first"), "the issuer has withdrawn it"


def test_made_up_key_ids_do_not_flood_the_issuer() -> None:
    source = Source(FIRST)
    for number in range(100):
        source.now += REFETCH_SECONDS / 50
        try:
            assert not source.find(f"made up {number}")
        except AskLaterError:
            continue
    assert 2 <= source.keys.fetches <= 3


def test_keys_outlive_an_issuer_that_is_away_for_a_while() -> None:
    source = Source(FIRST)
    assert source.find("first")
    source.away = True
    source.now += 301
    assert source.find("first")
    assert source.keys.failures == 1
    source.now += 3300
    with pytest.raises(BackendError, match="not known"):
        source.find("first")
    source.away = False
    source.now += REFETCH_SECONDS
    assert source.find("first")


def test_logins_that_come_together_share_one_request() -> None:
    source = Source(FIRST)

    async def many() -> list[object]:
        return list(await asyncio.gather(*(source.keys.key("first") for _ in range(20))))

    assert all(asyncio.run(many()))
    assert source.keys.fetches == 1


def test_an_issuer_that_was_never_reached_lets_nobody_in() -> None:
    source = Source(FIRST)
    source.away = True
    with pytest.raises(BackendError, match="not known"):
        source.find("first")
