"""The user that a new node has."""

import pytest

from fluxmq.auth.credentials import HashParameters, PasswordVerifier
from fluxmq.auth.permissions import permissions_of
from fluxmq.auth.users import user_problem
from fluxmq.control.first_user import first_user

PARAMETERS = HashParameters(1, 64, 1)


def test_the_first_user_may_do_everything_in_the_first_virtual_host():
    user = first_user(PARAMETERS, {})
    assert user_problem(user) is None
    assert (user.name, user.tags, user.enabled) == ("guest", ("administrator",), True)
    assert PasswordVerifier(PARAMETERS, b"d" * 16).verify(b"guest", user.hash)
    granted = permissions_of(user, "/")
    assert granted is not None
    assert granted.configure("q")
    assert granted.write("")
    assert granted.read("amq.topic")
    assert permissions_of(user, "other") is None


def test_the_first_user_may_not_use_mqtt_topics():
    user = first_user(PARAMETERS, {})
    assert (user.publish, user.subscribe) == ((), ())


@pytest.mark.parametrize("prefix", ["FLUXMQ_DEFAULT_", "RABBITMQ_DEFAULT_"])
def test_the_environment_may_name_the_first_user(prefix):
    user = first_user(PARAMETERS, {f"{prefix}USER": "ann", f"{prefix}PASS": "secret"})
    assert (user.name, user.tags) == ("ann", ("administrator",))
    assert PasswordVerifier(PARAMETERS, b"d" * 16).verify(b"secret", user.hash)


@pytest.mark.parametrize(
    "given", [{"FLUXMQ_DEFAULT_USER": " "}, {"RABBITMQ_DEFAULT_VHOST": "other"}]
)
def test_an_environment_that_cannot_be_followed_is_refused(given):
    with pytest.raises(ValueError, match="first"):
        first_user(PARAMETERS, given)
