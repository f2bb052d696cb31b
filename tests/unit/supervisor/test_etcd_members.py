"""How a member of etcd without a directory may start, by what those that run tell."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fluxmq.settings.clustering import ClusterSettings
from fluxmq.supervisor.etcd_members import (
    Admission,
    ToldMember,
    admission_of,
    initial_cluster,
    members_told,
)

OWN = "http://127.0.0.1:1"
OTHER = ToldMember("node2", ("http://127.0.0.1:2",), True)


@pytest.mark.parametrize(
    ("member", "admission"),
    [
        (ToldMember("node1", (OWN,), False), Admission.FIRST),
        (ToldMember("node1", (OWN,), True), Admission.WAITING),
        (ToldMember("", (OWN,), False), Admission.ADMITTED),
        (OTHER, Admission.WAITING),
    ],
)
def test_a_member_that_has_run_waits_until_it_is_admitted(
    member: ToldMember, admission: Admission
) -> None:
    assert admission_of([OTHER, member], OWN) is admission


def test_the_members_that_an_admitted_one_starts_with() -> None:
    members = [OTHER, ToldMember("", (OWN,), False)]
    assert initial_cluster(members, "node1") == f"node2=http://127.0.0.1:2,node1={OWN}"


class Answering(BaseHTTPRequestHandler):
    """Answers as the server's ``content`` says."""

    content = b""

    def do_GET(self) -> None:
        assert self.path == "/members"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(type(self).content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answering)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    serving.join()
    server.server_close()


CLUSTER = ClusterSettings.model_validate({"enabled": True, "node_id": "node1"})


def test_the_first_that_answers_tells(url: str) -> None:
    Answering.content = json.dumps(
        [
            {"id": 1, "peerURLs": [OWN], "name": ""},
            {"id": 2, "peerURLs": ["http://127.0.0.1:2"], "name": "node2", "clientURLs": ["x"]},
        ]
    ).encode()
    assert members_told(CLUSTER, [OWN, url]) == [ToldMember("", (OWN,), False), OTHER]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[{"name": "a"}]', b"null", b"\xff"])
def test_what_is_no_answer_is_passed_over(url: str, content: bytes) -> None:
    Answering.content = content
    assert members_told(CLUSTER, [url]) == []
