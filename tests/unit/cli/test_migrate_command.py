"""How `fluxmqctl migrate-queue` is told which queue, and where to."""

from __future__ import annotations

from typing import Self

import pytest

from fluxmq.cli.arguments import parser
from fluxmq.cli.exits import EXIT_USAGE, ExitError
from fluxmq.cli.migrate_command import place_of, run, wanted_of
from fluxmq.ipc.messages import Body
from fluxmq.ipc.migrations import MIGRATE_QUEUE, MIGRATION, Migrate, Migrating


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["orders"], ("/", "orders")),
        (["shop/orders"], ("shop", "orders")),
        (["/orders"], ("/", "orders")),
        (["//orders"], ("/", "orders")),
        (["a/b/orders"], ("a/b", "orders")),
        (["--vhost", "shop", "eu/orders"], ("shop", "eu/orders")),
        (["-p", "/", "eu/orders"], ("/", "eu/orders")),
    ],
)
def test_which_queue(arguments: list[str], place: tuple[str, str]) -> None:
    options = parser().parse_args(["migrate-queue", *arguments, "--to", "hot"])
    assert place_of(options) == place
    assert options.to == "hot"


def test_a_vhost_alone_is_no_queue() -> None:
    with pytest.raises(ExitError):
        place_of(parser().parse_args(["migrate-queue", "shop/", "--abort"]))


def test_either_a_group_or_an_abort() -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["migrate-queue", "orders", "--to", "hot", "--abort"])


@pytest.mark.parametrize("what", [[], ["--type", "quorum", "--abort"], ["--no-wait"]])
def test_a_group_a_type_or_an_abort(what: list[str]) -> None:
    options = parser().parse_args(["migrate-queue", "orders", *what])
    with pytest.raises(ExitError) as problem:
        wanted_of(options, "/", "orders")
    assert problem.value.code == EXIT_USAGE


@pytest.mark.parametrize("kind", ["classic", "stream", "quorums"])
def test_queues_become_quorum_queues_and_of_no_other_type(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["migrate-queue", "orders", "--type", kind])
    assert f"'{kind}': classic queues can be made quorum queues" in capsys.readouterr().err


class AnsweringNode:
    """A node that says where a queue is, one answer after the other, and remembers the requests."""

    def __init__(self, *answers: Migrating) -> None:
        self.asked: list[tuple[str, Migrate]] = []
        self._answers = iter(answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        return

    def call(self, kind: str, body: Body) -> Body:
        """Answer."""
        self.asked.append((kind, Migrate.from_body(body)))
        return next(self._answers).to_body()


MOVING = Migrating("local-0@node1", "leader-node1", "", "classic", "quorum")
THERE = Migrating("leader-node1", "", "", "quorum")
BACK = Migrating("local-0@node1", "", "", "classic")


@pytest.mark.parametrize(("more", "group"), [([], ""), (["--to", "leader-node1"], "leader-node1")])
@pytest.mark.parametrize("answers", [(MOVING, MOVING, THERE), (MOVING, THERE), (THERE,)])
def test_a_queue_is_made_a_quorum_queue(
    more: list[str], group: str, answers: tuple[Migrating, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    node = AnsweringNode(*answers)
    options = parser().parse_args(["migrate-queue", "-p", "/", "q", "--type", "quorum", *more])
    (told,) = run(node, options, False)
    assert told.startswith("queue 'q' is in group 'leader-node1' as a quorum queue (")
    asked = Migrate("/", "q", group, type="quorum")
    assert node.asked == [(MIGRATE_QUEUE, asked)] + [(MIGRATION, asked)] * (len(answers) - 1)
    moves = "moves from 'local-0@node1' to 'leader-node1'" in capsys.readouterr().out
    assert moves == (len(answers) > 1)


@pytest.mark.parametrize("answers", [(MOVING, BACK), (BACK,)])
def test_a_change_that_was_aborted_is_said(answers: tuple[Migrating, ...]) -> None:
    options = parser().parse_args(["migrate-queue", "q", "--type", "quorum"])
    with pytest.raises(ExitError, match="the move was aborted: 'q' is in 'local-0@node1'"):
        run(AnsweringNode(*answers), options, False)
