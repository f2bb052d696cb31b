"""Reading a settings file: every mistake is reported at once, each at its path, and none of them is guessed around."""

from pathlib import Path

import pytest

from fluxmq.model.limits import SECRET_FILE_BYTES_MAX, SETTINGS_FILE_BYTES_MAX, SETTINGS_NODES_MAX
from fluxmq.settings import DEFAULT_CONFIG, Settings, SettingsError, load

DEFAULTS = Settings(server=load(DEFAULT_CONFIG, {}).server)
"""Settings that no file has changed: the listeners are those of a node started without one."""

TESTS = Path(__file__).resolve().parents[2]
CERTIFICATE = TESTS / "certificates" / "server.pem"
KEY = TESTS / "certificates" / "server.key"
ENCRYPTED_KEY = TESTS / "data" / "settings" / "encrypted.key"
"""The same key, encrypted with the password hunter2."""


class Folder:
    """A directory with a settings file and what it names."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, text: str, **environ: str) -> Settings:
        """The settings in this text."""
        file = self.path / "fluxmq.yaml"
        file.write_text(text)
        return load(file, environ)

    def problems(self, text: str, **environ: str) -> dict[str, str]:
        """What is wrong with this text: message by path."""
        with pytest.raises(SettingsError) as caught:
            self.load(text, **environ)
        found = {problem.path: problem.message for problem in caught.value.problems}
        assert len(found) == len(caught.value.problems), "one problem per place"
        assert str(caught.value).count("\n") == len(found) - 1
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_an_empty_file_means_the_defaults(folder: Folder) -> None:
    assert folder.load("") == DEFAULTS
    assert folder.load("# nothing but a comment\n") == DEFAULTS


def test_values_arrive_in_plain_units(folder: Folder) -> None:
    settings = folder.load(
        """
        server: {mqtt: {tcp: {addr: "[::1]:1883", connect_timeout: 1m30s}}}
        broker: {max_packet_size: 2MiB, ring_bytes: 8MiB, keep_alive_maximum: 0}
        session: {max_output_bytes: 65536}
        ratelimit: {connection: {rate: 5}}
        """
    )
    tcp = settings.server.mqtt.tcp
    assert tcp is not None
    assert (tcp.host, tcp.port, tcp.connect_timeout, tcp.loopback) == ("::1", 1883, 90.0, True)
    assert settings.broker.max_packet_size == 2 << 20
    assert settings.session.max_output_bytes == 65536
    assert settings.ratelimit.connection.rate == 5.0
    assert settings.server.mqtt.tls is None


def test_all_problems_at_once(folder: Folder) -> None:
    found = folder.problems(
        """
        server:
          mqtt:
            tcp: {adr: ":1883", addr: "127.0.0.1:1883", max_connections: 0}
            websocket: {addr: "0.0.0.0:1883", connect_timeout: 5}
            tls: {addr: ":8883", key_file: /no/such.key, cert_file: 5}
          http: {addr: ":15672"}
        broker:
          max_qos: 2
          max_qos: 1
          max_packet_size: 1MB
          ring_bytes: 5000
        log: {level: warn}
        session: [1]
        storage: {data_dir: "${NO_SUCH_VARIABLE}"}
        auth: {anonymous: {publish: ["a/#/b", 5], allow: yes}}
        broken:
        """
    )
    assert found == {
        "broken": "has no value; leave the key out to get its default",
        "server.mqtt.tcp.max_connections": "must be at least 1, not 0",
        "server.mqtt.tcp.adr": "unknown key (did you mean addr?)",
        "server.mqtt.tls.cert_file": "must be a string (put it in quotes), not 5",
        "server.mqtt.tls.key_file": "/no/such.key: no such file",
        "server.mqtt.websocket.connect_timeout": "5 needs a unit, such as 5s or 5ms",
        "server.mqtt.websocket.addr": "0.0.0.0:1883 clashes with server.mqtt.tcp.addr, which is 127.0.0.1:1883",
        "broker.max_qos": "is given twice, on lines 9 and 10",
        "broker.max_packet_size": "'1MB' is not a size; sizes are binary: MiB",
        "broker.ring_bytes": "must be a multiple of 4KiB, not 5000",
        "session": "must be a mapping, not a list",
        "auth.anonymous.allow": "must be one of loopback, always, never, not 'yes'",
        "auth.anonymous.publish[0]": "'a/#/b' is not a topic filter; # stands alone in the last level",
        "auth.anonymous.publish[1]": "must be a string (put it in quotes), not 5",
        "log.level": "must be one of debug, info, warning, error, not 'warn'",
        "storage.data_dir": "needs the environment variable NO_SUCH_VARIABLE, which is not set",
    }


def test_problems_come_in_the_order_of_the_sections(folder: Folder) -> None:
    text = "storage: 1\nserver: 1\nbroker: 1\nnonsense: 1\n"
    assert list(folder.problems(text)) == ["nonsense", "server", "broker", "storage"]


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("broker: {max_qos: 1.0}", "broker.max_qos", "must be a whole number, not 1.0"),
        ("broker: {max_qos: '1'}", "broker.max_qos", "must be a whole number, not '1'"),
        ("broker: {max_qos: true}", "broker.max_qos", "must be a whole number, not true"),
        ("broker: {max_packet_size: 1.5}", "broker.max_packet_size", "1.5 is not a size; write bytes, or like 8KiB, 1MiB or 2GiB"),
        ("broker: {max_packet_size: 3TiB}", "broker.max_packet_size", "must be at most 268435460, not '3TiB'"),
        ("broker: {sys_interval: 2h}", "broker.sys_interval", "must be at most 1h, not '2h'"),
        ("broker: {sys_interval: true}", "broker.sys_interval", "true is not a duration; write it like 5s, 20ms, 1h30m or 7d"),
        ("ratelimit: {connection: {enabled: on}}", "ratelimit.connection.enabled", "must be true or false, not 'on'"),
        ("ratelimit: {connection: {rate: 0}}", "ratelimit.connection.rate", "must be more than 0, not 0"),
        ("ratelimit: {connection: {rate: fast}}", "ratelimit.connection.rate", "must be a number, not 'fast'"),
        ("storage: {data_dir: ''}", "storage.data_dir", "must be a non-empty string, not ''"),
        ("auth: {anonymous: {publish: '#'}}", "auth.anonymous.publish", "must be a list, not '#'"),
        ("server: {mqtt: {tcp: {}}}", "server.mqtt.tcp.addr", "is required"),
        ("server: {mqtt: {tcp: ':1883'}}", "server.mqtt.tcp", "must be a mapping, not ':1883'"),
        ("server: {mqtt: {tcp: {addr: 1883}}}", "server.mqtt.tcp.addr", "must be a string (put it in quotes), not 1883"),
        ("server: {mqtt: {websocket: {addr: ':1', path: mqtt}}}", "server.mqtt.websocket.path", "'mqtt' is not a path; it begins with / and has neither spaces, ? nor #"),
        ("server:", "server", "has no value; leave the key out to get its default"),
        ("cluster: {raft: {peers: {'a b': ':1'}}}", "cluster.raft.peers.a b", "'a b' is not a name; use up to 128 letters, digits, - _ and ."),
        ("cluster: {raft: {peers: []}}", "cluster.raft.peers", "must be a mapping, not a list"),
        ("queues: [{topics: []}]", "queues[0].name", "is required"),
        ("serverr: {}", "serverr", "unknown key (did you mean server?)"),
        ("zzz: {}", "zzz", "unknown key"),
        ("server: {mqtt: {tcp: {addr: ':1', connect_timeout: !!python/name:os.system x}}}", "server.mqtt.tcp.connect_timeout", "has the tag tag:yaml.org,2002:python/name:os.system; tags are not supported"),
        ("? [a]\n: b\n", "", "has a key on line 1 that is not a string"),
        ("- a\n", "", "the file must hold a mapping of sections, such as server: and broker:"),
        ("a: 1\n---\nb: 2\n", "", "line 2, column 1: expected a single document in the stream, but found another document"),
        ("server: {mqtt: [}", "", "line 1, column 17: expected the node content, but found '}'"),
        ("a: b: c", "", "line 1, column 5: mapping values are not allowed here"),
        ("a: &x [*x]", "", "is nested too deeply, or an alias contains itself"),
        ("a: \x07", "", "is not YAML: unacceptable character #x0007: special characters are not allowed   in \"<unicode string>\", position 3"),
    ],
)  # fmt: skip
def test_one_problem(folder: Folder, text: str, path: str, message: str) -> None:
    assert folder.problems(text) == {path: message}


@pytest.mark.parametrize(
    ("given", "throughput"),
    [("0", 0), ("500000", 500_000), ("10MB", 10_000_000), ("'8 MiB'", 8 << 20)],
)
def test_settings_of_rabbitmq_about_synchronising(
    folder: Folder, given: str, throughput: int
) -> None:
    """S4-71, S4-73."""
    lines = f"mirroring_sync_batch_size: 50, mirroring_sync_max_throughput: {given}"
    cluster = folder.load(f"cluster: {{{lines}}}").cluster
    assert cluster.mirroring_sync_batch_size == 50
    assert cluster.mirroring_sync_max_throughput == throughput
    assert folder.load("").cluster.mirroring_sync_batch_size == 4096
    assert folder.load("").cluster.mirroring_sync_max_throughput == 0


def test_what_is_no_size_of_a_batch_and_no_throughput(folder: Folder) -> None:
    """S4-71, S4-73."""
    found = folder.problems(
        "cluster: {mirroring_sync_batch_size: 0, mirroring_sync_max_throughput: 10 mb/s}"
    )
    assert sorted(found) == [
        "cluster.mirroring_sync_batch_size",
        "cluster.mirroring_sync_max_throughput",
    ]
    assert "is not a throughput" in found["cluster.mirroring_sync_max_throughput"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("broker: {max_topic_bytes: 8192, max_packet_size: 8191, max_connect_size: 64}", "broker.max_topic_bytes"),
        ("broker: {keep_alive_maximum: 1500ms}", "broker.keep_alive_maximum"),
        ("session: {default_expiry_interval: 8d}", "session.default_expiry_interval"),
        ("auth: {argon2: {memory_cost: 8KiB, parallelism: 2}}", "auth.argon2.memory_cost"),
        ("cluster: {transport: {tls_enabled: true, tls_cert_file: /dev/null, tls_key_file: /dev/null}}", "cluster.transport.tls_cert_file"),
        ("cluster: {raft: {min_in_sync_replicas: 6}}", "cluster.raft.min_in_sync_replicas"),
        ("cluster: {raft: {heartbeat_timeout: 3s}}", "cluster.raft.election_timeout"),
        ("cluster: {raft: {groups: {default: {enabled: false}}}}", "cluster.raft.groups.default.enabled"),
        ("cluster: {raft: {groups: {hot: {}}}}", "cluster.raft.groups.hot.bind_addr"),
        ("cluster: {raft: {groups: {hot: {bind_addr: ':1', replication_factor: 1}}}}", "cluster.raft.groups.hot.min_in_sync_replicas"),
        ("cluster: {raft: {groups: {hot: {bind_addr: ':1', election_timeout: 200ms}}}}", "cluster.raft.groups.hot.election_timeout"),
        ("cluster: {raft: {data_dir: /a, groups: {hot: {bind_addr: ':1', data_dir: /a}}}}", "cluster.raft.groups.hot.data_dir"),
        ("cluster: {raft: {bind_addr: ':1', groups: {hot: {bind_addr: 'localhost:1'}}}}", "cluster.raft.groups.hot.bind_addr"),
        ("cluster: {etcd: {bind_addr: ':1'}, transport: {bind_addr: '127.0.0.1:1'}}", "cluster.transport.bind_addr"),
        ("cluster: {etcd: {initial_cluster: 'broker-1'}}", "cluster.etcd.initial_cluster"),
        ("cluster: {etcd: {initial_cluster: 'a=http://h:1,b=h:2'}}", "cluster.etcd.initial_cluster"),
        ("server: {mqtt: {tcp: {addr: ':2380'}}}\ncluster: {etcd: {bind_addr: ':2380'}}", "cluster.etcd.bind_addr"),
        ("queues: [{name: a, topics: [x]}, {name: a, topics: [x]}]", "queues[1].name"),
        ("queues: [{name: a, topics: [x], retry: {initial_backoff: 10m}}]", "queues[0].retry.initial_backoff"),
        ("queues: [{name: a, topics: [x], replication: {min_in_sync_replicas: 6}}]", "queues[0].replication.min_in_sync_replicas"),
        ("queues: [{name: a, topics: [x], replication: {enabled: true, group: z}}]\ncluster: {raft: {enabled: true, auto_provision_groups: false}}", "queues[0].replication.group"),
    ],
)  # fmt: skip
def test_relations(folder: Folder, text: str, path: str) -> None:
    found = folder.problems(text)
    if "tls_enabled" in text:
        # /dev/null stands for a file that is there but is no regular one; the third is not given at all.
        assert found["cluster.transport.tls_ca_file"] == "is required, since tls_enabled is true"
        assert found[path] == "/dev/null: no such file"
    else:
        assert list(found) == [path]


def test_a_cluster_address_left_at_its_default_claims_nothing(folder: Folder) -> None:
    assert folder.load("server: {mqtt: {tcp: {addr: ':2380'}}}").server.mqtt.tcp is not None


def test_one_wrong_value_does_not_hide_the_others_relations(folder: Folder) -> None:
    found = folder.problems("broker: {max_qos: 9}\nsession: {default_expiry_interval: 8d}")
    assert list(found) == ["broker.max_qos", "session.default_expiry_interval"]


def test_a_relation_with_a_wrong_value_is_not_reported(folder: Folder) -> None:
    assert list(folder.problems("broker: {ring_bytes: 1, max_packet_size: 4MiB}")) == [
        "broker.ring_bytes"
    ]


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("${DIR}", {"DIR": "/srv"}, "/srv"),
        ("${DIR}/a", {"DIR": "/srv"}, "/srv/a"),
        ("${DIR:-/var}/b", {}, "/var/b"),
        ("${DIR:-/var}", {"DIR": ""}, "/var"),
        ("${DIR:-/var}", {"DIR": "/srv"}, "/srv"),
        ("$${DIR}", {"DIR": "/srv"}, "${DIR}"),
        ("$DIR $ {x}", {"DIR": "/srv"}, "$DIR $ {x}"),
        ("${N}", {"N": "007"}, "007"),
        ("${A}${B}", {"A": "${B}", "B": "c"}, "${B}c"),
    ],
)
def test_environment(folder: Folder, text: str, environ: dict[str, str], expected: str) -> None:
    for quoted in (text, f'"{text}"', f"'{text}'"):
        assert (
            folder.load(f"storage:\n  data_dir: {quoted}\n", **environ).storage.data_dir == expected
        )


def test_environment_for_numbers_and_words(folder: Folder) -> None:
    text = """
    broker: {max_qos: "${Q}", max_packet_size: "${SIZE}"}
    """
    assert list(folder.problems(text, Q="1", SIZE="1MiB")) == ["broker.max_qos"]
    settings = folder.load(
        """
        broker:
          max_qos: ${Q}
          max_packet_size: ${SIZE}
          sys_interval: ${EVERY}
        ratelimit:
          connection:
            enabled: ${LIMIT:-false}
        """,
        Q="1",
        SIZE="65536",
        EVERY="20s",
    )
    assert (settings.broker.max_qos, settings.broker.max_packet_size) == (1, 65536)
    assert settings.broker.sys_interval == 20.0
    assert settings.ratelimit.connection.enabled is False


def test_malformed_and_empty_variables(folder: Folder) -> None:
    assert "without a name" in folder.problems("storage: {data_dir: 'a${'}")["storage.data_dir"]
    assert "without a name" in folder.problems("storage: {data_dir: 'a${1}'}")["storage.data_dir"]
    assert folder.problems("broker:\n  max_qos: ${Q}\n", Q="") == {
        "broker.max_qos": "has no value; leave the key out to get its default"
    }


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere.yaml: no such file or directory"):
        load(tmp_path / "nowhere.yaml", {})
    with pytest.raises(SettingsError, match=r": is a directory"):
        load(tmp_path, {})


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a: \xff")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load(file, {})
    file.write_bytes(b"#" * (SETTINGS_FILE_BYTES_MAX + 1))
    with pytest.raises(SettingsError, match="is larger than"):
        load(file, {})
    file.write_bytes(b"#" * SETTINGS_FILE_BYTES_MAX)
    assert load(file, {}) == DEFAULTS


def test_aliases_may_not_multiply_without_end(folder: Folder) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for one, other in zip("abcdefg", "bcdefgh", strict=False):
        bomb += f"{other}: &{other} [{', '.join([f'*{one}'] * 10)}]\n"
    problems = folder.problems(bomb)
    assert (
        problems[""] == f"holds more than {SETTINGS_NODES_MAX} values once its aliases are followed"
    )


def test_deep_nesting_is_a_problem_not_a_crash(folder: Folder) -> None:
    assert "" in folder.problems("a: " + "[" * 20_000)


def test_tls_files(folder: Folder) -> None:
    cert, key = CERTIFICATE, KEY
    tls = f"addr: ':8883', cert_file: '{cert}', key_file: '{key}'"
    assert folder.load(f"server: {{mqtt: {{tls: {{{tls}}}}}}}").server.mqtt.tls is not None
    settings = folder.load(
        f"server: {{mqtt: {{tls: {{{tls}, ca_file: '{cert}', client_auth: require, min_version: 1.3}}}}}}"
    )
    assert settings.server.mqtt.tls is not None
    assert settings.server.mqtt.tls.min_version == "1.3"

    def wrong(more: str) -> dict[str, str]:
        return folder.problems(f"server: {{mqtt: {{tls: {{addr: ':8883', {more}}}}}}}")

    assert wrong(f"cert_file: '{cert}', key_file: '{cert}'").keys() == {"server.mqtt.tls.cert_file"}
    assert wrong(
        f"cert_file: '{cert}', key_file: '{key}', ca_file: '{key}', client_auth: request"
    ).keys() == {"server.mqtt.tls.ca_file"}
    assert wrong(f"cert_file: '{cert}', key_file: '{key}', client_auth: require") == {
        "server.mqtt.tls.ca_file": "is required, since client_auth is require"
    }
    assert wrong(f"cert_file: '{cert}', key_file: '{key}', ca_file: '{cert}'").keys() == {
        "server.mqtt.tls.client_auth"
    }
    assert wrong(f"cert_file: '{cert}', key_file: '{key}', min_version: 1.1") == {
        "server.mqtt.tls.min_version": "must be one of 1.2, 1.3, not '1.1'"
    }


def test_an_encrypted_key_and_its_password(folder: Folder) -> None:
    cert, key = CERTIFICATE, ENCRYPTED_KEY
    base = f"addr: ':8883', cert_file: '{cert}', key_file: '{key}'"

    def text(more: str) -> str:
        return f"server: {{mqtt: {{tls: {{{base}{more}}}}}}}"

    assert folder.problems(text("")).keys() == {"server.mqtt.tls.cert_file"}
    assert folder.problems(text(", key_password: wrong")).keys() == {"server.mqtt.tls.cert_file"}
    assert "wrong" not in str(folder.problems(text(", key_password: wrong")))
    assert folder.problems(text(", key_password: 1234")) == {
        "server.mqtt.tls.key_password": "must be a non-empty string"
    }

    secret = folder.path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    for more, environ in (
        (", key_password: hunter2", {}),
        (", key_password: '${PW}'", {"PW": "hunter2"}),
        (f", key_password_file: '{secret}'", {}),
    ):
        tls = folder.load(text(more), **environ).server.mqtt.tls
        assert tls is not None
        assert tls.key_password is not None
        assert tls.key_password.reveal() == "hunter2"


def test_secret_files_that_are_refused(folder: Folder) -> None:
    cert, key = CERTIFICATE, KEY
    secret = folder.path / "password"
    place = "server.mqtt.tls.key_password_file"

    def problem(more: str = "") -> str:
        tls = f"addr: ':1', cert_file: '{cert}', key_file: '{key}', key_password_file: '{secret}'{more}"
        found = folder.problems(f"server: {{mqtt: {{tls: {{{tls}}}}}}}")
        assert list(found) == [place]
        return found[place]

    assert problem() == f"{secret}: no such file"
    secret.write_text("hunter2\n")
    secret.chmod(0o644)
    assert "every user of this machine can read or write it" in problem()
    secret.chmod(0o600)
    assert problem(", key_password: other") == "cannot be given together with key_password"
    secret.write_text("\n")
    assert problem() == f"{secret}: is empty"
    secret.write_text("x" * (SECRET_FILE_BYTES_MAX + 1))
    assert "is larger than" in problem()


def test_a_file_is_read_once_and_its_secret_is_not_shown_in_problems(folder: Folder) -> None:
    found = folder.problems("server: {mqtt: {tls: {key_pasword: hunter2}}}")
    assert "hunter2" not in str(found)
    assert found["server.mqtt.tls.key_pasword"] == "unknown key (did you mean key_password?)"
