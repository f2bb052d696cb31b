"""The fixed limits: MQTT's are what its length fields can say."""

from fluxmq.model import limits
from fluxmq.model.errors import FluxmqError
from fluxmq.settings import SettingsError, SettingsProblem


def test_mqtt_limits_follow_from_field_widths() -> None:
    assert limits.MQTT_REMAINING_LENGTH_MAX == 128**4 - 1
    assert limits.MQTT_STRING_BYTES_MAX == 2**16 - 1
    assert limits.MQTT_EXPIRY_SECONDS_MAX == 2**32 - 1


def test_errors_have_one_root() -> None:
    error = SettingsError([SettingsProblem("a.b", "is wrong"), SettingsProblem("", "is worse")])
    assert isinstance(error, FluxmqError)
    assert str(error) == "a.b: is wrong\nis worse"
