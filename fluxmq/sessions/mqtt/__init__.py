"""MQTT sessions: connecting, publishing, subscribing, wills and expiry of both versions."""
