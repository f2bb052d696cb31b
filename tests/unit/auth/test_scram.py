"""SCRAM-SHA-256, the server's side: RFC 7677's exchange, and everything a client may get wrong."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxmq.auth.scram import (
    ITERATIONS,
    MESSAGE_BYTES_MAX,
    ScramError,
    ServerExchange,
    StoredKeys,
    derive_keys,
)

SECRET = b"s" * 32
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
# RFC 7677 section 3
KEYS = derive_keys("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange():
    return ServerExchange(SERVER_NONCE, SECRET)


def client_final(password, first_bare, server_first, header=b"n,,"):
    """A client of our own, written from RFC 5802 section 3."""
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        "sha256", password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c={base64.b64encode(header).decode()},r={fields['r']}"
    message = f"{first_bare},{server_first.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def test_the_exchange_of_rfc_7677():
    server = exchange()
    assert server.receive_client_first(CLIENT_FIRST) == "user"
    assert server.server_first(KEYS) == SERVER_FIRST
    assert server.receive_client_final(CLIENT_FINAL) == SERVER_FINAL
    assert server.username == "user"


def test_the_flag_y_and_an_identity_equal_to_the_user_are_accepted():
    server = exchange()
    bare = f"n=user,r={CLIENT_NONCE}"
    server.receive_client_first(f"y,a=user,{bare}".encode())
    final = client_final("pencil", bare, server.server_first(KEYS), b"y,a=user,")
    assert server.receive_client_final(final).startswith(b"v=")


def test_names_are_unescaped_and_prepared():
    server = exchange()
    name = server.receive_client_first(f"n,,n=a=2Cb=3Dc\u00add,r={CLIENT_NONCE}".encode())
    assert name == "a,b=cd"


def test_a_wrong_password_fails_at_the_proof():
    server = exchange()
    server.receive_client_first(CLIENT_FIRST)
    final = client_final("pencils", f"n=user,r={CLIENT_NONCE}", server.server_first(KEYS))
    with pytest.raises(ScramError) as caught:
        server.receive_client_final(final)
    assert caught.value.final == b"e=invalid-proof"


def test_an_unknown_user_looks_like_a_wrong_password():
    challenges = set()
    for _ in range(2):
        server = exchange()
        server.receive_client_first(CLIENT_FIRST)
        challenge = server.server_first(None)
        challenges.add(challenge)
        final = client_final("pencil", f"n=user,r={CLIENT_NONCE}", challenge)
        with pytest.raises(ScramError) as caught:
            server.receive_client_final(final)
        assert caught.value.final == b"e=invalid-proof"
    # The same salt at each attempt, another for another name, and the usual count of iterations.
    (challenge,) = challenges
    assert challenge.endswith(f",i={ITERATIONS}".encode())
    other = exchange()
    other.receive_client_first(CLIENT_FIRST.replace(b"user", b"other"))
    assert other.server_first(None) != challenge


def test_even_keys_made_from_the_fake_secret_do_not_let_an_unknown_user_in():
    server = exchange()
    server.receive_client_first(CLIENT_FIRST)
    first = server.server_first(None)
    without_proof = b"c=biws," + first.split(b",")[0]
    message = b"n=user,r=" + CLIENT_NONCE.encode() + b"," + first + b"," + without_proof
    stored = hmac.digest(SECRET, b"stored key", "sha256")
    proof = base64.b64encode(hmac.digest(stored, message, "sha256"))
    with pytest.raises(ScramError, match="wrong password or unknown user"):
        server.receive_client_final(without_proof + b",p=" + proof)


@pytest.mark.parametrize(
    ("message", "server_error"),
    [
        (b"", "invalid-encoding"),
        (b"n,", "invalid-encoding"),
        (b"n,,", "invalid-encoding"),
        (b"n,,n=user", "invalid-encoding"),
        (b"n,,r=abc,n=user", "invalid-encoding"),
        (b"x,,n=user,r=abc", "invalid-encoding"),
        (b"n,,n=user,r=", "invalid-encoding"),
        (b"n,,n=user,r=a b", "invalid-encoding"),
        (b"n,,n=user,r=" + b"x" * 257, "invalid-encoding"),
        (b"n,,n=us\x00er,r=abc", "invalid-encoding"),
        (b"n,,n=\xff,r=abc", "invalid-encoding"),
        (b"n,,n=user,r=" + b"x" * MESSAGE_BYTES_MAX, "invalid-encoding"),
        (b"p=tls-unique,,n=user,r=abc", "channel-binding-not-supported"),
        (b"n,,m=ext,n=user,r=abc", "extensions-not-supported"),
        (b"n,a=other,n=user,r=abc", "other-error"),
        (b"n,user,n=user,r=abc", "other-error"),
        (b"n,,n=,r=abc", "invalid-username-encoding"),
        (b"n,,n=a=b,r=abc", "invalid-username-encoding"),
        (b"n,,n=\x07,r=abc", "invalid-username-encoding"),
    ],
)
def test_first_messages_that_are_refused(message, server_error):
    with pytest.raises(ScramError) as caught:
        exchange().receive_client_first(message)
    assert caught.value.server_error == server_error
    assert caught.value.final == b"e=" + server_error.encode()


@pytest.mark.parametrize(
    ("message", "server_error"),
    [
        (b"", "invalid-encoding"),
        (b"c=biws", "invalid-encoding"),
        (CLIENT_FINAL.partition(b",p=")[0], "invalid-encoding"),
        (CLIENT_FINAL.replace(b"c=biws", b"c=eSws"), "channel-bindings-dont-match"),
        (CLIENT_FINAL.replace(b"k0,", b"k1,"), "other-error"),
        (CLIENT_FINAL.replace(b"r=rOpr", b"r=xOpr"), "other-error"),
        (CLIENT_FINAL.replace(b"p=dHz", b"p=eHz"), "invalid-proof"),
        (CLIENT_FINAL.partition(b"p=")[0] + b"p=", "invalid-proof"),
        (CLIENT_FINAL.partition(b"p=")[0] + b"p=AAAA", "invalid-proof"),
        (CLIENT_FINAL.partition(b"p=")[0] + b"p=!", "invalid-encoding"),
        (CLIENT_FINAL + "ü".encode(), "invalid-encoding"),
    ],
)
def test_final_messages_that_are_refused(message, server_error):
    server = exchange()
    server.receive_client_first(CLIENT_FIRST)
    server.server_first(KEYS)
    with pytest.raises(ScramError) as caught:
        server.receive_client_final(message)
    assert caught.value.server_error == server_error
    with pytest.raises(ScramError, match="failed"):
        server.receive_client_final(CLIENT_FINAL)


def test_messages_out_of_order_are_refused():
    with pytest.raises(ScramError, match="unexpected message"):
        exchange().receive_client_final(CLIENT_FINAL)
    with pytest.raises(ScramError, match="unexpected message"):
        exchange().server_first(KEYS)
    server = exchange()
    server.receive_client_first(CLIENT_FIRST)
    with pytest.raises(ScramError, match="unexpected message"):
        server.receive_client_first(CLIENT_FIRST)


def test_a_finished_exchange_takes_nothing_more():
    server = exchange()
    server.receive_client_first(CLIENT_FIRST)
    server.server_first(KEYS)
    server.receive_client_final(CLIENT_FINAL)
    with pytest.raises(ScramError, match="done"):
        server.receive_client_final(CLIENT_FINAL)


@pytest.mark.parametrize(("nonce", "secret"), [("", SECRET), ("a,b", SECRET), ("abc", b"short")])
def test_the_callers_nonce_and_secret_are_checked(nonce, secret):
    with pytest.raises(ValueError, match="nonce"):
        ServerExchange(nonce, secret)


@pytest.mark.parametrize(
    "parts",
    [
        (4095, b"s" * 16, b"k" * 32, b"k" * 32),
        (4096, b"s" * 7, b"k" * 32, b"k" * 32),
        (4096, b"s" * 16, b"k" * 31, b"k" * 32),
        (4096, b"s" * 16, b"k" * 32, b"k" * 33),
    ],
)
def test_keys_that_cannot_be_scram_sha_256(parts):
    with pytest.raises(ValueError, match="must be"):
        StoredKeys(*parts)


def test_prohibited_passwords_are_refused():
    with pytest.raises(ValueError, match="not allowed"):
        derive_keys("a\x07", b"s" * 16)


def whole_exchange(first, final):
    server = exchange()
    server.receive_client_first(first)
    server.server_first(KEYS)
    return server.receive_client_final(final)


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_end_in_a_scram_error(first, final):
    with pytest.raises(ScramError) as caught:
        whole_exchange(first, final)
    assert caught.value.final.startswith(b"e=")
