"""SCRAM-SHA-256, the server's side (RFC 5802, RFC 7677), as a state machine without I/O.

    client                                     server
      | n,,n=user,r=<client nonce>               |   receive_client_first -> user name
      |----------------------------------------->|
      |  r=<both nonces>,s=<salt>,i=<iterations> |   server_first(keys or None)
      |<-----------------------------------------|
      | c=biws,r=<both nonces>,p=<proof>         |   receive_client_final -> server's proof
      |----------------------------------------->|
      |  v=<server signature>                    |
      |<-----------------------------------------|

The server stores no password and nothing a thief could log in with. The caller looks the user up,
between the first two calls. For an unknown user the exchange runs to the end with a salt derived
from a secret of this process, the same at each attempt, and fails at the proof like a wrong
password. Channel binding is not offered: ``n`` and ``y`` are accepted, ``p=`` is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from fluxmq.auth.saslprep import saslprep

# RFC 7677 section 4: at least 4096, and about 15 000 recommended. One number for all users, so that
# it does not reveal whether a user exists. The cost is the client's, at each login.
ITERATIONS: Final = 15_000
ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 10_000_000
SALT_BYTES: Final = 16
NONCE_BYTES: Final = (
    18  # random bytes behind our part of the nonce; base64 makes 24 characters of them
)
KEY_BYTES: Final = 32
# A message of this exchange is a user name, two nonces and a proof; a longer one is not SCRAM.
MESSAGE_BYTES_MAX: Final = 2048
CLIENT_NONCE_CHARACTERS_MAX: Final = 256

# RFC 5802 section 7: printable = %x21-2B / %x2D-7E
_PRINTABLE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_BAD_ESCAPE = re.compile("=(?!2C|3D)")


class ScramError(Exception):
    """The exchange failed; `server_error` is the value of RFC 5802's ``e=`` attribute, `final` the
    message with it."""

    def __init__(self, server_error: str, text: str) -> None:
        super().__init__(text)
        self.server_error = server_error

    @property
    def final(self) -> bytes:
        """Server-final-message that tells the client."""
        return f"e={self.server_error}".encode("ascii")


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The server's record of a password (RFC 5802 section 3); useless for logging in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __post_init__(self) -> None:
        """Raise ValueError when the parts cannot belong to SCRAM-SHA-256."""
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise ValueError(f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        if not 8 <= len(self.salt) <= 64:
            raise ValueError("salt must be 8 to 64 bytes")
        if len(self.stored_key) != KEY_BYTES or len(self.server_key) != KEY_BYTES:
            raise ValueError(f"keys must be {KEY_BYTES} bytes")


def derive_keys(password: str, salt: bytes, iterations: int = ITERATIONS) -> StoredKeys:
    """Return the keys to store for a password; `salt` is fresh random bytes.

    Takes some milliseconds (PBKDF2). Raises ValueError for a password that SASLprep prohibits.
    """
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    client_key = _hmac(salted, b"Client Key")
    return StoredKeys(
        iterations, salt, hashlib.sha256(client_key).digest(), _hmac(salted, b"Server Key")
    )


class _State(Enum):
    START = auto()
    NAMED = auto()
    CHALLENGED = auto()
    DONE = auto()
    FAILED = auto()


class ServerExchange:
    """One authentication by SCRAM-SHA-256; the three methods are called once each, in order.

    After a ScramError the exchange stays failed. `username` is the prepared name once the first
    message was read; it is proven only after `receive_client_final` has returned.
    """

    __slots__ = (
        "_bare",
        "_fake_secret",
        "_gs2",
        "_keys",
        "_nonce",
        "_server_first",
        "_state",
        "username",
    )

    def __init__(self, server_nonce: str, fake_secret: bytes) -> None:
        """Take our part of the nonce (fresh, printable, without comma) and the process's secret for
        unknown users."""
        if _PRINTABLE.fullmatch(server_nonce) is None or len(fake_secret) < 16:
            raise ValueError("nonce must be printable without comma, secret at least 16 bytes")
        self._nonce = server_nonce
        self._fake_secret = fake_secret
        self._state = _State.START
        self._gs2 = ""
        self._bare = ""
        self._server_first = ""
        self._keys: StoredKeys | None = None
        self.username = ""

    def receive_client_first(self, message: bytes) -> str:
        """Read the client-first-message and return the user to look up. Raises ScramError."""
        self._expect(_State.START)
        text = _text(message)
        parts = text.split(",", 2)
        if len(parts) != 3:
            raise _malformed("client-first-message is incomplete")
        flag, identity, bare = parts
        if flag.startswith("p="):
            raise ScramError("channel-binding-not-supported", "client demands channel binding")
        if flag not in ("n", "y"):
            raise _malformed("channel binding flag is not n, y or p")
        attributes = bare.split(",")
        if attributes[0].startswith("m="):
            raise ScramError("extensions-not-supported", "client demands an extension")
        if (
            len(attributes) < 2
            or not attributes[0].startswith("n=")
            or not attributes[1].startswith("r=")
        ):
            raise _malformed("user name and nonce must come first")
        self.username = _name(attributes[0][2:])
        if identity and (not identity.startswith("a=") or _name(identity[2:]) != self.username):
            raise ScramError("other-error", "authorisation as another user is not supported")
        nonce = attributes[1][2:]
        if len(nonce) > CLIENT_NONCE_CHARACTERS_MAX or _PRINTABLE.fullmatch(nonce) is None:
            raise _malformed("client nonce is empty, too long or not printable")
        self._nonce = nonce + self._nonce
        self._gs2 = f"{flag},{identity},"
        self._bare = bare
        self._state = _State.NAMED
        return self.username

    def server_first(self, keys: StoredKeys | None) -> bytes:
        """Return the server-first-message for the user's keys; None stands for a user that may not
        log in."""
        self._expect(_State.NAMED)
        self._keys = keys
        if keys is not None:
            salt, iterations = keys.salt, keys.iterations
        else:
            salt = _hmac(self._fake_secret, b"salt:" + self.username.encode())[:SALT_BYTES]
            iterations = ITERATIONS
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        self._state = _State.CHALLENGED
        return self._server_first.encode("ascii")

    def receive_client_final(self, message: bytes) -> bytes:
        """Check the client's proof and return the server-final-message. Raises ScramError; then
        nothing is proven."""
        self._expect(_State.CHALLENGED)
        text = _text(message)
        without_proof, separator, proof_text = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if not separator or len(attributes) < 2 or not attributes[1].startswith("r="):
            raise _malformed("client-final-message is incomplete")
        binding = "c=" + base64.b64encode(self._gs2.encode()).decode()
        if not hmac.compare_digest(attributes[0].encode(), binding.encode()):
            raise ScramError(
                "channel-bindings-dont-match", "channel binding differs from the first message"
            )
        if not hmac.compare_digest(attributes[1][2:].encode(), self._nonce.encode()):
            raise ScramError("other-error", "nonce differs from the one sent")
        proof = _base64(proof_text)
        authenticated = f"{self._bare},{self._server_first},{without_proof}".encode()
        keys = self._keys
        # For an unknown user the same computation runs on keys nobody can know.
        stored_key = (
            keys.stored_key if keys is not None else _hmac(self._fake_secret, b"stored key")
        )
        server_key = (
            keys.server_key if keys is not None else _hmac(self._fake_secret, b"server key")
        )
        signature = _hmac(stored_key, authenticated)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        proven = (
            hmac.compare_digest(hashlib.sha256(client_key).digest(), stored_key)
            and len(proof) == KEY_BYTES
        )
        verifier = base64.b64encode(_hmac(server_key, authenticated))
        if not proven or keys is None:
            raise ScramError("invalid-proof", "wrong password or unknown user")
        self._state = _State.DONE
        return b"v=" + verifier

    def _expect(self, state: _State) -> None:
        """Check the order of calls; until the call succeeds the exchange counts as failed."""
        if self._state is not state:
            raise ScramError(
                "other-error", f"unexpected message: the exchange is {self._state.name.lower()}"
            )
        self._state = _State.FAILED


def _malformed(text: str) -> ScramError:
    return ScramError("invalid-encoding", text)


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise _malformed(f"message is longer than {MESSAGE_BYTES_MAX} bytes")
    try:
        text = message.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed("message is not UTF-8") from error
    if "\x00" in text:
        raise _malformed("message contains NUL")
    return text


def _name(encoded: str) -> str:
    """Decode a saslname (RFC 5802 section 5.1: ``=2C`` and ``=3D``) and prepare it."""
    if _BAD_ESCAPE.search(encoded):
        raise ScramError("invalid-username-encoding", "user name has = that is not =2C or =3D")
    try:
        name = saslprep(encoded.replace("=2C", ",").replace("=3D", "="))
    except ValueError as error:
        raise ScramError("invalid-username-encoding", f"user name: {error}") from error
    if not name:
        raise ScramError("invalid-username-encoding", "user name is empty")
    return name


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise _malformed("proof is not base64") from error


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
