"""The scripts about mirrored queues, on clusters of three nodes: their verbs, their cases and what is kept of them.

A connection whose name begins with A, B or C goes to that node. Further verbs, each at the node before it:

* ``rabbitmqctl words``: a command; ``rabbit@nodeA`` stands for the name of node A, and whether it did what was asked is compared.
  With ``eventually`` before it, it is given until it does, or the time is up.
* ``row queue=q leader=A mirrors=B,C synchronised=B policy=p``: the row of a queue in ``list_queues``, once it is as said, or
  after ``seconds``. With ``gone``, once it is not listed any more. With ``any``, nodes other than A are not told apart: mirrors are numbers, and leaders A or not.
* ``kill``, ``stop`` (in order), ``start`` (``alone``: no wait until it serves), ``pause``, ``resume``, ``serves``.
* ``reached message_count=n queue=q``: like ``until``, over failures of the node that is asked.

Nodes' names are A, B and C in outcomes. After a case its queues and policies are deleted and all nodes started; where that
fails, the next case has another cluster.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf import report
from perf.brokers import BrokerError
from tests.differential import compare, mirror_clusters, script
from tests.differential.mirror_clusters import LETTERS, ClusterError, MirrorCluster
from tests.differential.runner import Outcome, Probe, Run
from tests.differential.script import COMMAND, Case, Step

FOLDER = compare.FOLDER / "mirror_cases"
EXCEPTIONS = compare.FOLDER / "mirror_exceptions.json"
RESULTS = compare.FOLDER / "results"
RECORDED = RESULTS / "mirrors-rabbitmq.json"
OURS = RESULTS / "mirrors-fluxmq.json"
PAGE = RESULTS / "mirrors.md"
TITLE = "Mirrored queues: FluxMQ against RabbitMQ"
PARTITIONS = {"minority": "pause_minority"}
"""RabbitMQ's ``cluster_partition_handling`` by area; ``ignore``, its default, in others."""
OWN = ("forget",)
"""Areas whose cases have a cluster each, since they leave it with fewer nodes."""

COLUMNS = ("name", "policy", "pid", "slave_pids", "synchronised_slave_pids")
PID = re.compile(r"<([^<>]+)\.\d+\.\d+\.\d+>")
ROW_S = 30.0
LOOK_S = 0.3
EVENTUALLY = "eventually"
NO_ROW = "not listed"
HOME = "A"


@dataclass(frozen=True)
class Row:
    """A queue as it is listed, by letters of nodes. ``mirrors``: None where it is not mirrored."""

    leader: str
    policy: str
    mirrors: tuple[str, ...] | None
    synchronised: tuple[str, ...] | None

    def parts(self, told_apart: bool) -> dict[str, str]:
        """The parts as settings of ``row`` say them."""
        leader = self.leader if told_apart or self.leader in ("", HOME) else f"not {HOME}"
        found = {"leader": leader or "none", "policy": self.policy or "none"}
        for name, nodes in (("mirrors", self.mirrors), ("synchronised", self.synchronised)):
            if nodes is None:
                found[name] = "none"
            else:
                found[name] = ",".join(sorted(nodes)) if told_apart else str(len(nodes))
        return found


def nodes_of(text: str, letters: dict[str, str]) -> tuple[str, ...] | None:
    """The nodes that identifiers of processes name, by letter; None where there is no list."""
    if not text.startswith("["):
        return None
    return tuple(letters.get(name, name) for name in PID.findall(text))


def row_of(line: str, letters: dict[str, str]) -> Row:
    """A line of ``list_queues``. Its JSON has other identifiers, which name no node."""
    _, policy, pid, mirrors, synchronised, *_ = [*line.split("\t"), "", "", "", ""]
    leader = "".join(letters.get(name, name) for name in PID.findall(pid))
    return Row(leader, policy, nodes_of(mirrors, letters), nodes_of(synchronised, letters))


class Lettered:
    """Texts of a cluster with its nodes' names replaced by letters, and back."""

    def __init__(self, names: dict[str, str]) -> None:
        self.letters = {name: letter for letter, name in names.items()}
        self._names = names
        self._pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in self.letters))

    def shown(self, text: str) -> str:
        """A text of the cluster as outcomes have it."""
        return self._pattern.sub(lambda found: self.letters[found[0]], text)

    def named(self, text: str) -> str:
        """A word of a script as the cluster needs it."""
        return re.sub(r"\brabbit@node([A-C])\b", lambda found: self._names[found[1]], text)


@dataclass
class MirrorRun:
    """One case against one cluster. ``told``: called with each step and its outcome; ``held``: nodes that were paused."""

    cluster: MirrorCluster
    case: Case
    told: Callable[[Step, list[str], float], None] = lambda _step, _outcome, _seconds: None
    paused: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)

    def run(self) -> Outcome:
        """All steps. A step that breaks off does not end the case: its error is its outcome."""
        names = {letter: self.cluster.node_name(letter) for letter in LETTERS}
        self.texts = Lettered(names)
        target = mirror_clusters.target_of(self.cluster)
        steps = Run(target, self.case, verbs=self.verbs())
        outcome: Outcome = []
        for step in self.case.steps:
            began = time.monotonic()
            try:
                found = steps.step(step)
            except (OSError, KeyError, script.ScriptError, AssertionError) as error:
                first = (str(error).splitlines() or [""])[0]
                found = [f"broke off: {type(error).__name__}: {first}"]
            outcome.append([self.texts.shown(line) for line in found])
            self.told(step, outcome[-1], time.monotonic() - began)
        for peer in steps.peers.values():
            with suppress(OSError):
                peer.cut()
        return outcome

    def clean(self) -> None:
        """Delete what the case made, on nodes that all run again. Raises ``ClusterError``."""
        mirror_clusters.heal(self.cluster, self.paused)
        # RabbitMQ's do not always find back to the others by themselves.
        for letter in sorted(self.held):
            self.cluster.kill(letter)
        mirror_clusters.heal(self.cluster, ())
        declared = {s.settings["queue"] for s in self.case.steps if s.verb == "queue.declare"}
        target = mirror_clusters.target_of(self.cluster)
        for queue in sorted(declared):
            self.deleted(target, queue)
        for step in self.case.steps:
            if step.verb == COMMAND and step.words[0] == "set_policy":
                # The name stands before the pattern and the definition.
                self.cluster.control(HOME, ["clear_policy", step.words[-3]])

    def deleted(self, target: Any, queue: str) -> None:
        """Delete a queue, at whichever node can. Raises ``ClusterError``."""
        for letter in LETTERS * 4:
            with suppress(OSError), Probe(target, letter) as probe:
                if probe.call("queue.delete", {"queue": queue}).name == "queue.delete-ok":
                    return
            time.sleep(LOOK_S)
        raise ClusterError(f"{self.cluster.name}: queue {queue} cannot be deleted")

    # --- verbs -------------------------------------------------------------------------------------------------

    def verbs(self) -> dict[str, Callable[[Step], list[str]]]:
        """Those beside the runner's own."""
        return {
            COMMAND: self.do_command,
            "row": self.do_row,
            "kill": self.do_kill,
            "stop": self.do_stop,
            "start": self.do_start,
            "serves": self.do_serves,
            "pause": self.do_pause,
            "resume": self.do_resume,
            "reached": self.do_reached,
        }

    def letter(self, step: Step) -> str:
        """The node of a step."""
        return step.connection[0] if step.connection[0] in LETTERS else HOME

    def do_command(self, step: Step) -> list[str]:
        """A command."""
        words = [self.texts.named(word) for word in step.words]
        deadline = time.monotonic() + (ROW_S if words[0] == EVENTUALLY else 0.0)
        words = words[words[0] == EVENTUALLY :]
        while True:
            code, _ = self.cluster.control(self.letter(step), words)
            if not code or time.monotonic() > deadline:
                return ["refused" if code else "done"]
            time.sleep(LOOK_S)

    def row(self, letter: str, queue: str) -> Row | None:
        """A queue as a node lists it; None where it does not."""
        _, text = self.cluster.control(letter, ("list_queues", "--silent", *COLUMNS))
        found = [each for each in text.splitlines() if each.split("\t")[0] == queue]
        return row_of(found[0], self.texts.letters) if found else None

    def do_row(self, step: Step) -> list[str]:
        """The row of a queue when it is as said, or when the time is up."""
        settings = dict(step.settings)
        queue, seconds = str(settings.pop("queue")), settings.pop("seconds", ROW_S)
        wanted = {name: str(value) for name, value in settings.items()}
        told_apart = "any" not in step.words
        deadline = time.monotonic() + seconds
        while True:
            row = self.row(self.letter(step), queue)
            parts = {} if row is None else row.parts(told_apart)
            if "gone" in step.words:
                if row is None:
                    break
            elif parts and all(parts[name] == value for name, value in wanted.items()):
                break
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_S)
        return [" ".join(f"{name}={value}" for name, value in parts.items()) or NO_ROW]

    def do_kill(self, step: Step) -> list[str]:
        """End a node without a word."""
        self.cluster.kill(self.letter(step))
        return []

    def do_stop(self, step: Step) -> list[str]:
        """End a node in order."""
        return ["stopped" if self.cluster.stop(self.letter(step)) else "did not stop in order"]

    def do_start(self, step: Step) -> list[str]:
        """Start a node."""
        self.cluster.start(self.letter(step))
        return [] if "alone" in step.words else self.do_serves(step)

    def do_serves(self, step: Step) -> list[str]:
        """Whether clients are let in at a node."""
        seconds = step.settings.get("seconds", mirror_clusters.START_S)
        found = mirror_clusters.serves(self.cluster, self.letter(step), seconds)
        return ["serves" if found else "does not serve"]

    def do_pause(self, step: Step) -> list[str]:
        """Hold a node."""
        self.paused.append(self.letter(step))
        self.held.add(self.letter(step))
        self.cluster.signal(self.letter(step), signal.SIGSTOP)
        return []

    def do_resume(self, step: Step) -> list[str]:
        """Let it go on."""
        self.paused.remove(self.letter(step))
        self.cluster.signal(self.letter(step), signal.SIGCONT)
        return []

    def do_reached(self, step: Step) -> list[str]:
        """What a passive declare says, once a queue has so many messages, or when the time is up."""
        wanted = step.settings.get("message_count")
        deadline = time.monotonic() + step.settings.get("seconds", ROW_S)
        target = mirror_clusters.target_of(self.cluster)
        while True:
            said = "no connection"
            with suppress(OSError), Probe(target, step.connection) as probe:
                event = probe.look(str(step.settings["queue"]))
                said = event.text()
                if event.fields.get("message_count", -1) == wanted:
                    return [said]
            if time.monotonic() > deadline:
                return [said]
            time.sleep(LOOK_S)


# --- all of them ------------------------------------------------------------------------------------------------------


def load() -> list[Case]:
    """The cases."""
    return script.load(FOLDER)


def run_all(
    name: str, cases: Sequence[Case], show: bool, logs: Path | None = None
) -> dict[str, Outcome]:
    """All cases against one broker, each area on a cluster of its own."""
    outcomes: dict[str, Outcome] = {}
    for area in dict.fromkeys(case.area for case in cases):
        own = [case for case in cases if case.area == area]
        for group in [[each] for each in own] if area in OWN else [own]:
            outcomes.update(run_area(name, area, group, show, logs))
    return outcomes


def run_area(
    name: str, area: str, cases: Sequence[Case], show: bool, logs: Path | None
) -> Iterator[tuple[str, Outcome]]:
    """Yield the outcomes of cases on one cluster."""
    partitions = PARTITIONS.get(area, "ignore")
    with mirror_clusters.running(name, partitions) as held:
        for case in cases:
            if show:
                print(f"== {case.identifier} ({name})", flush=True)
            run = MirrorRun(held[0], case, told if show else MirrorRun.told)
            yield case.identifier, run.run()
            if logs is not None:
                folder = logs / script.slug(case.identifier)
                folder.mkdir(parents=True, exist_ok=True)
                held[0].keep_logs(folder)
            if case is cases[-1]:
                return
            try:
                run.clean()
            except (ClusterError, BrokerError, OSError, AssertionError) as problem:
                print(f"{case.identifier}: another {name} follows: {problem}", flush=True)
                held.pop().end()
                held.append(mirror_clusters.start_cluster(name, partitions))


def told(step: Step, outcome: list[str], seconds: float) -> None:
    """Print a step and its outcome."""
    print(f"    {step.line}    [{seconds:.1f} s]")
    for line in outcome:
        print(f"        {line}", flush=True)


def record(path: Path, broker: str, outcomes: dict[str, Outcome], cases: Sequence[Case]) -> None:
    """Keep what a broker did, with the scripts it is of; what is kept of other cases remains."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    names = {case.identifier for case in load()}

    def kept_of(part: str) -> dict[str, Any]:
        return {case: each for case, each in kept.get(part, {}).items() if case in names}

    content = {
        "broker": broker,
        "time": report.now(),
        "scripts": kept_of("scripts")
        | {case.identifier: compare.script_of(case) for case in cases},
        "outcomes": kept_of("outcomes") | outcomes,
    }
    report.write_json(path, content)
