"""Random requests to every route of the management interface: each gets an answer, none an internal
error, and the broker lives on."""

from __future__ import annotations

import http.client
import json
import random
import re
from base64 import b64encode
from typing import Any
from urllib.parse import quote

from tests.broker import HOST, BrokerFactory, free_port
from tests.management import ManagementSite
from tests.unit.control.management import make_api

REQUESTS = 1500
NAMES = ("q", "e", "v", "amq.direct", "", "~", "ü", "a/b", "x" * 256, "nul\0", "*", "..", "\ud800")
KEYS = [
    "name",
    "vhost",
    "type",
    "durable",
    "auto_delete",
    "internal",
    "arguments",
    "routing_key",
    "destination",
    "destination_type",
    "source",
    "pattern",
    "definition",
    "apply-to",
    "priority",
    "password",
    "password_hash",
    "hashing_algorithm",
    "tags",
    "configure",
    "write",
    "read",
    "exchange",
    "value",
    "count",
    "ackmode",
    "encoding",
    "payload",
    "payload_encoding",
    "properties",
    "truncate",
    "publish",
    "subscribe",
    "enabled",
    "scram",
    "users",
    "queues",
    "exchanges",
    "bindings",
    "vhosts",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "component",
    "user",
    "limits",
    "metadata",
    "default_queue_type",
    "headers",
    "delivery_mode",
    "expiration",
    "x-queue-type",
    "x-max-length",
    "x-message-ttl",
    "alternate-exchange",
    "max-length",
]
TEXTS = (
    *NAMES,
    *("classic", "quorum", "stream", "topic", "/", "queue", "all", "auto", "base64", "string"),
    *(
        "ack_requeue_true",
        "reject_requeue_false",
        ".*",
        "(",
        "#",
        "a/#/b",
        "true",
        "-1",
        "vhost-limits",
    ),
)
NUMBERS = (0, 1, -1, 2, 5.5, 2**31, 2**63, 2**64, -(2**63), 1e308)


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON; objects with keys of the interface."""
    kind = chance.randrange(8 if depth < 4 else 5)
    if kind < 3:
        return chance.choice(TEXTS)
    if kind == 3:
        return chance.choice(NUMBERS)
    if kind == 4:
        return chance.choice((None, True, False))
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(3))]
    return {chance.choice(KEYS): value(chance, depth + 1) for _ in range(chance.randrange(1, 7))}


def body(chance: random.Random) -> bytes:
    """Mostly an object, sometimes other JSON, or none."""
    if chance.random() < 0.05:
        return chance.choice((b"{", b"\xff", b"[" * 5000, b'{"a": 1e999}', b'{"name": "\\ud800"}'))
    found = value(chance)
    while not isinstance(found, dict) and chance.random() < 0.9:
        found = value(chance)
    return json.dumps(found).encode()


def path(chance: random.Random, template: str) -> str:
    """A path of a route, with random names, and a random query now and then."""

    def named(match: re.Match[str]) -> str:
        usual = {"vhost": "/", "user": "u"}.get(match.group(1), "q")
        if match.group(1) == "vhost" and template.endswith("vhosts/{vhost}"):
            usual = "v"  # the others stay in the one that remains
        text = usual if chance.random() < 0.6 else chance.choice(NAMES)
        return quote(text.encode("utf-8", "surrogatepass"), safe="")

    found = re.sub(r"\{(\w+)(?::[^}]*)?\}", named, template)
    if chance.random() < 0.3:
        keys = (
            "page",
            "page_size",
            "name",
            "sort",
            "sort_reverse",
            "columns",
            "use_regex",
            "if-empty",
        )
        query = [
            f"{chance.choice(keys)}={quote(str(chance.choice(('1', '0', '-1', 'x', '(', 'a.b', 'true', '9' * 30))))}"
        ]
        found += "?" + "&".join(query)
    return f"/api/{found}"


def test_random_requests_get_answers(own_broker: BrokerFactory) -> None:
    port = free_port()
    settings = {"server": {"amqp": {"tcp": {"addr": f"{HOST}:{port}"}}}, "log": {"format": "json"}}
    broker = own_broker(settings=settings, workers=2)
    site = ManagementSite(broker.http_port, port)
    pids = broker.pids()
    routes = make_api().routes
    chance = random.Random(23)
    credentials = b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=30)
    statuses: dict[int, int] = {}
    for number in range(REQUESTS):
        route = routes[number % len(routes)]
        target, content = path(chance, route.path), b""
        if route.method in ("PUT", "POST", "DELETE"):
            content = body(chance)
        try:
            connection.request(route.method, target, content, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (http.client.HTTPException, OSError):
            connection.close()  # it ended the connection: the next request opens another
            continue
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        assert answer.status != 500, (route.method, target, content, text)
        assert answer.status != 503 or "health" in target, (route.method, target, content, text)
        if answer.status >= 400:
            assert json.loads(text).keys() & {"error", "status"}, (route.method, target, text)
    connection.close()
    assert statuses[200] > 100
    assert statuses[400] > 100
    assert "internal error" not in broker.log()
    assert "Traceback" not in broker.log()
    assert site.get("whoami")["name"] == "guest"
    assert broker.pids() == pids, "no process has ended"
