"""MQTT sessions: connecting, publishing, subscribing, wills, expiry; both versions in one package."""
