"""How `fluxmqctl migrate-queue` is told which queue, and where to."""

from __future__ import annotations

import pytest

from fluxmq.cli.arguments import parser
from fluxmq.cli.exits import ExitError
from fluxmq.cli.migrate_command import place_of


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


@pytest.mark.parametrize("what", [[], ["--to", "hot", "--abort"]])
def test_either_a_group_or_an_abort(what: list[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["migrate-queue", "orders", *what])
