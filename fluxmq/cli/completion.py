"""``fluxmqctl completion bash|zsh|fish``: a script that completes commands, options and their values.

The scripts are written from the parser, so that they know what it knows. All three share one walk over
it: `Level` is what may follow a command, by its path (``user add``). RabbitMQ's names complete their
commands.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

FILES: Final = ("FILE", "DIR", "PATH")
"""Names of values that are files."""
PROGRAM: Final = "fluxmqctl"
OTHER_PROGRAMS: Final = ("rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-queues")
SHELLS: Final = ("bash", "zsh", "fish")


class Choice(NamedTuple):
    """A word and its description."""

    word: str
    text: str


class Level(NamedTuple):
    """Words that may follow a command: subcommands or values, options, and the options that take a value with
    its choices; none for any."""

    path: str
    words: tuple[Choice, ...]
    options: tuple[Choice, ...]
    values: dict[str, tuple[str, ...]]
    files: tuple[str, ...]
    """Options whose value is a file; ``""`` if an argument is."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    text = "write a script that completes commands, for a shell"
    added = commands.add_parser(
        "completion",
        help=text,
        description=f"{text.capitalize()}: source <(fluxmqctl completion bash).",
    )
    added.set_defaults(command="completion")
    added.add_argument("shell", choices=SHELLS, help="the shell")


def script(shell: str, parser: argparse.ArgumentParser, others: Sequence[str]) -> str:
    """Return the script for a shell. `others`: the commands of the other programs."""
    levels = list(walked(parser))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](levels, others)


def walked(parser: argparse.ArgumentParser, path: str = "") -> Iterator[Level]:
    """Yield every command of a parser, the parser itself first."""
    words: list[Choice] = []
    options: list[Choice] = []
    values: dict[str, tuple[str, ...]] = {}
    files: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        choices = tuple(str(each) for each in action.choices or ())
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            words += [Choice(name, _text(helps.get(name, ""))) for name in action.choices]
            below += action.choices.items()
            continue
        if not action.option_strings:
            words += [Choice(each, "") for each in choices]
            files += [""] * (str(action.metavar) in FILES)
            continue
        for option in action.option_strings:
            options.append(Choice(option, _text(action.help or "")))
            if action.nargs != 0:
                values[option] = choices
                files += [option] * (str(action.metavar) in FILES)
    yield Level(path, tuple(words), tuple(options), values, tuple(files))
    for name, child in below:
        yield from walked(child, f"{path} {name}".strip())


def _text(help_text: str) -> str:
    """Return a description as one short sentence without characters that shells interpret."""
    plain = re.sub(r"\s*\(default:? %\(default\)s[^)]*\)|%\(\w+\)s", "", help_text)
    return re.sub(r"[^\w ,.()/<>=-]", "", plain.partition(";")[0]).strip()


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _cases(levels: Sequence[Level]) -> list[str]:
    """Return lines of a function that names the options with a value, the words and the files of each
    command, for bash and zsh alike."""
    lines = []
    for level in levels:
        lines.append(f"        {_quoted(level.path)})")
        words = " ".join(each.word for each in level.words)
        lines.append(f"            found={_quoted(words)}")
        lines.append(
            f"            options={_quoted(' '.join(each.word for each in level.options))}"
        )
        lines.append(f"            valued={_quoted(' ' + ' '.join(level.values) + ' ')}")
        if "" in level.files:
            lines.append("            file=1")
        lines.append('            case "$prev" in')
        for option, choices in level.values.items():
            if choices:
                chosen = f"found={_quoted(' '.join(choices))}; options=; file="
            else:
                chosen = f"found=; options=; file={'1' if option in level.files else ''}"
            lines.append(f"                {option}) {chosen};;")
        lines += ["            esac;;"]
    return lines


_WALK: Final = """\
    for ((i = first; i < last; i++)); do
        word="${all[i]}"
        prev=
        _fluxmqctl_level
        case "$word" in
            --*=*) ;;
            -*) case "$valued" in *" $word "*) ((i++)) ;; esac ;;
            *) case " $found " in *" $word "*) trail="${trail:+$trail }$word" ;; esac ;;
        esac
    done
"""


def _bash(levels: Sequence[Level], others: Sequence[str]) -> str:
    return "\n".join(
        [
            "# Completion of fluxmqctl for bash: source <(fluxmqctl completion bash)",
            "_fluxmqctl_level() {",
            '    found=; options=; valued=" "; file=',
            '    case "$trail" in',
            *_cases(levels),
            "    esac",
            "}",
            "_fluxmqctl() {",
            '    local cur="${COMP_WORDS[COMP_CWORD]}" first=1 last=$COMP_CWORD',
            "    local trail= prev= word found options valued file i",
            '    local all=("${COMP_WORDS[@]}")',
            _WALK.rstrip("\n"),
            '    prev="${all[COMP_CWORD - 1]}"',
            "    _fluxmqctl_level",
            '    case "$cur" in -*) found="$options" ;; esac',
            '    COMPREPLY=($(compgen -W "$found" -- "$cur"))',
            '    if [[ -n "$file" ]]; then COMPREPLY+=($(compgen -f -- "$cur")); fi',
            "}",
            "complete -o filenames -F _fluxmqctl fluxmqctl",
            f"complete -W {_quoted(' '.join(others))} {' '.join(OTHER_PROGRAMS)}",
            "",
        ]
    )


def _zsh(levels: Sequence[Level], others: Sequence[str]) -> str:
    return "\n".join(
        [
            f"#compdef {PROGRAM} {' '.join(OTHER_PROGRAMS)}",
            "# Completion of fluxmqctl for zsh: as _fluxmqctl in a directory of $fpath, or by",
            "# source <(fluxmqctl completion zsh)",
            "_fluxmqctl_level() {",
            '    found=; options=; valued=" "; file=',
            '    case "$trail" in',
            *_cases(levels),
            "    esac",
            "}",
            "_fluxmqctl() {",
            '    local cur="${words[CURRENT]}" first=2 last=$CURRENT program="${words[1]:t}"',
            '    local -a all=("${words[@]}")',
            "    local trail= prev= word found options valued file",
            "    integer i",
            f'    if [[ "$program" != {PROGRAM} ]]; then',
            f"        compadd -- {' '.join(map(_quoted, others))}",
            "        return",
            "    fi",
            _WALK.rstrip("\n"),
            '    prev="${all[last - 1]}"',
            "    _fluxmqctl_level",
            '    case "$cur" in -*) found="$options" ;; esac',
            '    [[ -n "$found" ]] && compadd -- ${=found}',
            '    [[ -n "$file" ]] && _files',
            "    return 0",
            "}",
            'if [[ "$funcstack[1]" = _fluxmqctl ]]; then',
            '    _fluxmqctl "$@"',
            "else",
            f"    compdef _fluxmqctl {PROGRAM} {' '.join(OTHER_PROGRAMS)}",
            "fi",
            "",
        ]
    )


def _fish(levels: Sequence[Level], others: Sequence[str]) -> str:
    lines = [
        "# Completion of fluxmqctl for fish: fluxmqctl completion fish | source",
        f"complete -c {PROGRAM} -f",
    ]
    top, *below = levels
    for level in levels:
        condition = "__fish_use_subcommand"
        if level is not top:
            condition = "; and ".join(
                f"__fish_seen_subcommand_from {word}" for word in level.path.split()
            )
            if len(level.path.split()) == 1 and any(
                each.path.startswith(level.path + " ") for each in below
            ):
                words = " ".join(each.word for each in level.words)
                condition += f"; and not __fish_seen_subcommand_from {words}"
        begin = f"complete -c {PROGRAM} -n {_quoted(condition)}"
        for choice in level.words:
            text = f" -d {_quoted(choice.text)}" if choice.text else ""
            lines.append(f"{begin} -a {_quoted(choice.word)}{text}")
        if "" in level.files:
            lines.append(f"{begin} -F")
        for option in level.options:
            kind = "-l" if option.word.startswith("--") else "-s"
            line = f"{begin} {kind} {option.word.lstrip('-')}"
            if option.word in level.values:
                choices = level.values[option.word]
                line += " -r -F" if option.word in level.files else " -x"
                line += f" -a {_quoted(' '.join(choices))}" if choices else ""
            lines.append(line + (f" -d {_quoted(option.text)}" if option.text else ""))
    names = _quoted(" ".join(others))
    lines += [
        f"complete -c {each} -f -n __fish_use_subcommand -a {names}" for each in OTHER_PROGRAMS
    ]
    return "\n".join([*lines, ""])
