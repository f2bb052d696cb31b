"""The command line: options before a verb, as rabbitmqctl takes them."""

import pytest

from fluxmq.cli.arguments import ordered, parser


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("list_queues -p b name", "list_queues -p b name"),
        ("-p b list_queues name", "list_queues -p b name"),
        ("--vhost=b -q list_queues", "list_queues --vhost=b -q"),
        ("--data-dir x -s --timeout 3 list_users", "--data-dir x --timeout 3 list_users -s"),
        ("-t 3 --formatter json list_users", "-t 3 list_users --formatter json"),
        ("--config=x list_users -q", "--config=x list_users -q"),
        ("status --json", "status --json"),
        ("--version", "--version"),
        ("-p", "-p"),
        ("", ""),
    ],
)
def test_options_before_a_verb_are_put_behind_it(given, expected):
    assert ordered(given.split()) == expected.split()


def test_a_pattern_is_not_taken_for_an_option():
    arguments = ["set_permissions", "-p", "b", "ann", "^-.*", "", ".*"]
    options = parser().parse_args(ordered(arguments))
    assert (options.vhost, options.configure, options.write, options.read) == (
        "b",
        "^-.*",
        "",
        ".*",
    )


@pytest.mark.parametrize("verb", ["list_queues", "add_vhost b", "set_policy p ^q {}"])
def test_verbs_know_what_may_stand_before_them(verb):
    options = parser().parse_args(ordered(["-q", *verb.split()]))
    assert options.quiet
