"""A manual page of a command, made from its options: manual.py COMMAND SECTION."""

import argparse
import sys

import fluxmq
from fluxmq.cli.arguments import parser as of_fluxmqctl
from fluxmq.supervisor.main import parser as of_supervisor

PARSERS = {"fluxmqctl": of_fluxmqctl, "fluxmq-supervisor": of_supervisor}
FILES = {
    "/etc/fluxmq/fluxmq.yaml": "settings; every key is in docs/configuration.md",
    "/var/lib/fluxmq": "data of the node that the package runs",
}


def escaped(text: str) -> str:
    """Return a text with nothing in it that the formatter takes for its own."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in {".", "'"} else line for line in text.split("\n"))


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands of a parser, those of its commands included, by name."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                below = commands_of(each)
                if below:
                    found |= {f"{name} {more}": one for more, one in below.items()}
                else:
                    found[name] = each
    return found


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the lines for a parser's options and arguments."""
    lines = []
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        if action.help is argparse.SUPPRESS:
            continue
        label = formatter._format_action_invocation(action)
        text = formatter._expand_help(action) if action.help else ""
        lines += [".TP", f".B {escaped(label)}", escaped(text)]
    return lines


def page(name: str, section: str) -> str:
    """Return the manual page."""
    parser = PARSERS[name]()
    usage = escaped(" ".join(parser.format_usage().removeprefix("usage: ").split()))
    what = (parser.description or name).rstrip(".")
    lines = [f'.TH {name.upper()} {section} "" "FluxMQ {fluxmq.__version__}"']
    lines += [".SH NAME", f"{escaped(name)} \\- {escaped(what)}", ".SH SYNOPSIS", usage]
    lines += [".SH OPTIONS", *options_of(parser)]
    commands = commands_of(parser)
    if commands:
        lines.append(".SH COMMANDS")
    for each in sorted(commands):
        known = commands[each]
        shown = " ".join(known.format_usage().removeprefix("usage: ").split())
        lines += [f".SS {escaped(shown)}", escaped(known.description or ""), *options_of(known)]
    if parser.epilog:
        lines += [".SH NOTES", ".nf", escaped(parser.epilog.rstrip()), ".fi"]
    lines += [".SH FILES"]
    for path, text in FILES.items():
        lines += [".TP", f".I {escaped(path)}", escaped(text)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1], sys.argv[2]))
