"""Who is believed, and where plaintext may be spoken."""

from pathlib import Path

import pytest

from fluxmq.cluster.errors import SecurityError
from fluxmq.cluster.security import Security
from fluxmq.settings.clustering import ClusterSettings

FILES = Path(__file__).parents[2] / "certificates" / "cluster"


def cluster(**transport: object) -> ClusterSettings:
    return ClusterSettings.model_validate(
        {
            "enabled": True,
            "node_id": "node1",
            "transport": {"peers": {"node2": "127.0.0.1:1"}, **transport},
            "raft": {
                "peers": {"node3": "127.0.0.1:2"},
                "groups": {"far": {"bind_addr": "127.0.0.1:3", "peers": {"node4": "127.0.0.1:4"}}},
            },
        }
    )


def tls(**files: str) -> ClusterSettings:
    given = {
        "tls_cert_file": str(FILES / "node1.pem"),
        "tls_key_file": str(FILES / "node1.key"),
        "tls_ca_file": str(FILES / "ca.pem"),
    }
    return cluster(tls_enabled=True, **{**given, **files})


def test_members_are_those_of_all_lists_without_this_node() -> None:
    assert Security.of(cluster()).members == {"node2", "node3", "node4"}
    assert Security("node1", ["node1", "node2"]).members == {"node2"}


@pytest.mark.parametrize("address", ["127.0.0.1:7948", "127.8.0.1:1", "localhost:1", "[::1]:7948"])
def test_plaintext_is_spoken_on_loopback(address: str) -> None:
    Security.of(cluster()).check_address(address)


@pytest.mark.parametrize("address", [":7948", "0.0.0.0:1", "10.0.0.1:1", "[::]:1", "node2:7948"])
def test_plaintext_elsewhere_needs_the_switch_or_tls(address: str) -> None:
    with pytest.raises(SecurityError, match="allow_plaintext"):
        Security.of(cluster()).check_address(address)
    Security.of(cluster(allow_plaintext=True)).check_address(address)
    Security.of(tls()).check_address(address)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    with pytest.raises(SecurityError, match=r"tls_ca_file: .*absent\.pem cannot be read"):
        Security.of(tls(tls_ca_file=str(tmp_path / "absent.pem")))
    with pytest.raises(SecurityError, match=r"tls_key_file: .*empty\.pem is not in PEM format"):
        Security.of(tls(tls_key_file=str(empty)))


PLAIN = Security("node1", ["node2", "node3"])
MUTUAL = Security.of(tls())


def names(*dns: str, common: str = "", others: tuple[str, ...] = ()) -> dict[str, object]:
    """What Python says of a certificate."""
    found = [*(("DNS", name) for name in dns), *(("IP Address", name) for name in others)]
    shown: dict[str, object] = {"subject": ((("commonName", common),),)} if common else {}
    return {**shown, "subjectAltName": tuple(found)} if found else shown


@pytest.mark.parametrize(
    ("security", "node", "shown", "problem"),
    [
        (PLAIN, "node2", {}, ""),
        (PLAIN, "node1", {}, "own name"),
        (PLAIN, "node9", {}, "not among the nodes"),
        (PLAIN, "", {}, "not among the nodes"),
        (MUTUAL, "node2", names("node2"), ""),
        (MUTUAL, "node2", names("elsewhere", "NODE2"), ""),
        (MUTUAL, "node2", names(common="node2"), ""),
        (MUTUAL, "node2", {}, "names nobody"),
        (MUTUAL, "node2", None, "names nobody"),
        (MUTUAL, "node2", names("node3"), "names node3"),
        (MUTUAL, "node2", names("node3", common="node2"), "names node3"),
        (MUTUAL, "node2", names(common="node2", others=("10.0.0.2",)), "names nobody"),
        (MUTUAL, "node2", names("*"), r"names \*"),
        (MUTUAL, "node9", names("node9"), "not among the nodes"),
        (MUTUAL, "node1", names("node1"), "own name"),
    ],
)
def test_who_is_believed(
    security: Security, node: str, shown: dict[str, object] | None, problem: str
) -> None:
    found = security.problem_with(node, shown)
    if problem:
        assert problem.replace("\\", "") in found
    else:
        assert found == ""


@pytest.mark.parametrize(
    ("key", "authority", "named"),
    [("node2.key", "ca.pem", "are no pair"), ("node1.key", "node1.key", "tls_ca_file")],
)
def test_files_that_do_not_go_together_are_named(key: str, authority: str, named: str) -> None:
    with pytest.raises(SecurityError, match=named):
        Security.of(tls(tls_key_file=str(FILES / key), tls_ca_file=str(FILES / authority)))


def test_new_certificates_are_for_connections_from_now_on(tmp_path: Path) -> None:
    """Bad files keep what was read before, for listening and for dialling."""
    files = {name: tmp_path / name for name in ("node1.pem", "node1.key", "ca.pem")}
    for name, copy in files.items():
        copy.write_bytes((FILES / name).read_bytes())
    security = Security(
        "node1",
        ["node2"],
        certificate=str(files["node1.pem"]),
        key=str(files["node1.key"]),
        authority=str(files["ca.pem"]),
    )
    before = security.server_context, security.client_context
    security.reload()
    reloaded = security.server_context, security.client_context
    assert reloaded[0] is not before[0]
    assert reloaded[1] is not before[1]
    files["node1.key"].write_bytes((FILES / "node2.key").read_bytes())
    with pytest.raises(SecurityError, match="are no pair"):
        security.reload()
    assert (security.server_context, security.client_context) == reloaded
    plain = Security("node1", ["node2"])
    plain.reload()
    assert plain.server_context is None
