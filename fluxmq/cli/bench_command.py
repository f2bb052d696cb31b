"""``fluxmqctl bench``: what a broker does per second on this machine, in half a minute.

Uses a running broker, or with ``--start`` one of its own in a temporary directory. Clients are processes
(`fluxmq.cli.bench_client`), each with a publisher and a subscriber, as fast as the broker lets them; they
take processor time from a broker on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from fluxmq.cli.exits import EXIT_NOT_RUNNING, EXIT_REFUSED, EXIT_USAGE, ExitError
from fluxmq.cli.node import TargetNode
from fluxmq.cli.tables import TextTable, columns, grouped

KINDS: Final = {
    "mqtt-qos0": "MQTT QoS 0",
    "mqtt-qos1": "MQTT QoS 1",
    "amqp-confirms": "AMQP, durable queue, confirms",
}
"""Cases by name, and what they are."""
SECONDS: Final = 8.0
WARM_UP_SECONDS: Final = 1.0
CLIENTS: Final = 2
CLIENTS_MAX: Final = 64
SIZE: Final = 128
SIZE_MAX: Final = 65_536
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
GRACE_SECONDS: Final = 30.0
"""Time beyond a case's own for its clients to connect, and to receive what is under way."""
GUEST: Final = "guest"
_PASSWORD_VARIABLE: Final = "FLUXMQ_PASSWORD"

_SETTINGS: Final = """\
server:
  mqtt: {{tcp: {{addr: "127.0.0.1:{mqtt}"}}}}
  amqp: {{tcp: {{addr: "127.0.0.1:{amqp}"}}}}
storage: {{data_dir: "{directory}/data"}}
log: {{level: warning}}
"""


class Doors(NamedTuple):
    """Addresses of the listeners; None for one that the broker does not have."""

    mqtt: tuple[str, int] | None
    amqp: tuple[str, int] | None


class CaseResult(NamedTuple):
    """Sum over the clients of a case: messages per second, messages lost, and the greatest of their
    latencies in microseconds, from publishing to arrival."""

    kind: str
    clients: int
    published: float
    delivered: float
    p50_us: float
    p99_us: float
    lost: int


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    text = "measure messages per second and latency on this machine, in half a minute"
    added = commands.add_parser(
        "bench",
        help=text,
        description=f"{text.capitalize()}: of the running broker, which gets full load meanwhile, or of"
        " one that is started for it.",
    )
    added.set_defaults(command="bench")
    added.add_argument(
        "cases", metavar="CASE", nargs="*", help=f"of {', '.join(KINDS)} (default: all)"
    )
    added.add_argument(
        "--start", action="store_true", help="start a broker in a temporary directory, and stop it"
    )
    added.add_argument("--mqtt", metavar="HOST:PORT", type=_address, help="MQTT listener to use")
    added.add_argument("--amqp", metavar="HOST:PORT", type=_address, help="AMQP listener to use")
    added.add_argument(
        "--login",
        dest="bench_login",
        metavar="NAME",
        help="user of the clients, with the password in FLUXMQ_PASSWORD (default: guest for AMQP, no"
        " user for MQTT)",
    )
    added.add_argument(
        "--seconds",
        metavar="SECONDS",
        type=_between(0.5, 3600, float),
        default=SECONDS,
        help="how long each case is measured (default: %(default)s)",
    )
    added.add_argument(
        "--clients",
        metavar="N",
        type=_between(1, CLIENTS_MAX, int),
        default=CLIENTS,
        help="processes with a publisher and a subscriber each (default: %(default)s)",
    )
    added.add_argument(
        "--size",
        metavar="BYTES",
        type=_between(8, SIZE_MAX, int),
        default=SIZE,
        help="bytes of a message (default: %(default)s)",
    )
    added.add_argument("--json", action="store_true", help="print one JSON object")


def _between(least: float, most: float, kind: type[float]) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least:g} to {most:g}")
        return value

    parsed.__name__ = "number"  # argparse names it in its messages
    return parsed


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65_536):
        raise argparse.ArgumentTypeError("must be HOST:PORT")
    return host.strip("[]"), int(port)


def run(node: TargetNode, options: argparse.Namespace) -> list[str]:
    """Measure, and return the lines to print. Exits when there is no broker, or a case fails."""
    kinds = options.cases or list(KINDS)
    unknown = [each for each in kinds if each not in KINDS]
    if unknown:
        raise ExitError(EXIT_USAGE, f"{', '.join(unknown)}: cases are {', '.join(KINDS)}")
    with contextlib.ExitStack() as stack:
        doors = stack.enter_context(_started()) if options.start else _found(node, options)
        results = [_measured(kind, doors, options) for kind in kinds]
    if options.json:
        found = {
            "cores": len(os.sched_getaffinity(0)),
            "size": options.size,
            "cases": [each._asdict() for each in results],
        }
        return [orjson.dumps(found).decode()]
    return table_lines(results)


def table_lines(results: Sequence[CaseResult]) -> list[str]:
    """Return the table of results."""
    titles = "CASE, #CLIENTS, #PUBLISHED/S, #DELIVERED/S, #LATENCY P50, #P99, #LOST"
    table = TextTable(columns(titles))
    for each in results:
        table.rows.append(
            [
                KINDS[each.kind],
                str(each.clients),
                grouped(round(each.published)),
                grouped(round(each.delivered)),
                f"{each.p50_us / 1000:.2f} ms",
                f"{each.p99_us / 1000:.2f} ms",
                grouped(each.lost),
            ]
        )
    return table.lines(colour=False)


def _found(node: TargetNode, options: argparse.Namespace) -> Doors:
    """Return the listeners that the command line names, or else the running broker's."""
    if options.mqtt or options.amqp:
        return Doors(options.mqtt, options.amqp)
    from fluxmq.cli.health_verbs import address_of, described

    try:
        description = described(node)
    except ExitError as problem:
        if problem.code != EXIT_NOT_RUNNING:
            raise
        text = f"{problem}; --start starts one in a temporary directory"
        raise ExitError(EXIT_NOT_RUNNING, text) from None
    rows = {row.path: address_of(node, row) for row in description.listeners}
    return Doors(rows.get("server.mqtt.tcp"), rows.get("server.amqp.tcp"))


@contextlib.contextmanager
def _started() -> Iterator[Doors]:
    """Run a broker in a temporary directory, with listeners on free ports."""
    with tempfile.TemporaryDirectory(prefix="fluxmq-bench-") as directory:
        doors = Doors(*(("127.0.0.1", port) for port in _free_ports(2)))
        assert doors.mqtt is not None
        assert doors.amqp is not None
        config = Path(directory, "fluxmq.yaml")
        config.write_text(
            _SETTINGS.format(mqtt=doors.mqtt[1], amqp=doors.amqp[1], directory=directory), "utf-8"
        )
        output = Path(directory, "log")
        with open(output, "wb") as log:
            broker = subprocess.Popen(
                [sys.executable, "-m", "fluxmq.supervisor.main", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: each for name, each in os.environ.items() if "FLUXMQ__" not in name},
            )
        try:
            _await(broker, Path(directory, "data"), output)
            yield doors
        finally:
            broker.terminate()
            try:
                broker.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                broker.kill()
                broker.wait()


def _await(broker: subprocess.Popen[bytes], data_dir: Path, output: Path) -> None:
    from fluxmq.cli.health_verbs import await_ready

    place = argparse.Namespace(
        config=None, data_dir=str(data_dir), url=None, login=None, ca_file=None, timeout=5.0
    )
    try:
        await_ready(TargetNode(place), START_SECONDS, lambda: broker.poll() is None)
    except ExitError as problem:
        said = output.read_text("utf-8", "replace").strip().splitlines()[-3:]
        raise ExitError(EXIT_REFUSED, "\n".join([f"the broker: {problem}", *said])) from None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _measured(kind: str, doors: Doors, options: argparse.Namespace) -> CaseResult:
    """Run the clients of a case. Exits when one of them fails."""
    amqp = kind.startswith("amqp")
    door = doors.amqp if amqp else doors.mqtt
    if door is None:
        name = "AMQP" if amqp else "MQTT"
        raise ExitError(EXIT_REFUSED, f"{kind}: the broker has no listener for {name} without TLS")
    password = os.environ.get(_PASSWORD_VARIABLE, "") if options.bench_login else GUEST
    user = options.bench_login or (GUEST if amqp else "")
    run_name = secrets.token_hex(4)
    begun = [
        _begin(
            {
                "kind": kind,
                "host": door[0],
                "port": door[1],
                "user": user,
                "password": password if user else "",
                "name": f"fluxmq-bench-{run_name}-{number}",
                "size": options.size,
                "warm_up": WARM_UP_SECONDS,
                "seconds": options.seconds,
            }
        )
        for number in range(options.clients)
    ]
    limit = WARM_UP_SECONDS + options.seconds + GRACE_SECONDS
    try:
        found = [_ended(kind, client, limit) for client in begun]
    finally:
        for client in begun:
            with client:  # closes its pipes, and waits for it
                client.kill()
    return CaseResult(
        kind,
        options.clients,
        published=round(sum(each["sent"] / each["seconds"] for each in found), 1),
        delivered=round(sum(each["received"] / each["seconds"] for each in found), 1),
        p50_us=max(each["p50_us"] for each in found),
        p99_us=max(each["p99_us"] for each in found),
        lost=sum(each["lost"] for each in found),
    )


def _begin(task: dict[str, Any]) -> subprocess.Popen[bytes]:
    client = subprocess.Popen(
        [sys.executable, "-m", "fluxmq.cli.bench_client"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert client.stdin is not None
    client.stdin.write(orjson.dumps(task))
    client.stdin.close()
    client.stdin = None
    return client


def _ended(kind: str, client: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    try:
        out, said = client.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ExitError(EXIT_REFUSED, f"{kind}: a client did not end in time") from None
    if client.returncode:
        reason = said.decode("utf-8", "replace").strip().splitlines()
        raise ExitError(EXIT_REFUSED, f"{kind}: {reason[-1] if reason else client.returncode}")
    found: dict[str, Any] = orjson.loads(out)
    return found
