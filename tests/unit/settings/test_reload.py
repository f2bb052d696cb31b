"""What SIGHUP may change in a running node."""

from fluxmq.settings import Settings, changes


def made(**sections: object) -> Settings:
    """Settings with these sections."""
    return Settings.model_validate(sections)


def test_nothing_changed() -> None:
    assert changes(Settings(), Settings()) == ([], [])


def test_live_and_restart() -> None:
    old = made(server={"mqtt": {"tcp": {"addr": ":1883"}}})
    new = made(
        server={"mqtt": {"tcp": {"addr": ":1884"}}},
        broker={"max_qos": 1, "max_packet_size": "512KiB"},
        session={"max_sessions": 5},
        auth={"anonymous": {"publish": ("a",)}, "verify_threads": 3},
        ratelimit={"connection": {"rate": 1.0}},
        log={"level": "debug"},
    )
    live, restart = changes(old, new)
    assert live == [
        "broker.max_qos",
        "session.max_sessions",
        "auth.anonymous.publish",
        "auth.verify_threads",
        "ratelimit.connection.rate",
        "log.level",
    ]
    assert restart == ["server.mqtt.tcp.addr", "broker.max_packet_size"]
    assert changes(new, old) == (live, restart)


def test_sections_that_come_and_go() -> None:
    group = {"raft": {"groups": {"hot": {"bind_addr": ":2"}}}}
    old = made(server={"http": {"addr": "127.0.0.1:1"}}, cluster=group)
    live, restart = changes(old, Settings())
    assert live == []
    assert "server.http.addr" in restart
    assert "cluster.raft.groups.hot.bind_addr" in restart
    assert changes(Settings(), old) == (live, restart) or set(changes(Settings(), old)[1]) == set(
        restart
    )


def test_a_secret_that_changed_is_named_and_not_shown() -> None:
    tls = {"addr": ":1", "cert_file": "c", "key_file": "k"}
    old = made(server={"mqtt": {"tls": tls | {"key_password": "hunter2"}}})
    new = made(server={"mqtt": {"tls": tls | {"key_password": "hunter3"}}})
    assert changes(old, new) == ([], ["server.mqtt.tls.key_password"])
