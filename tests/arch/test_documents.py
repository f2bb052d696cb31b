"""The documents agree with the tree."""

import configparser
import re
from pathlib import Path

from tests.arch import decisions

ROOT = Path(__file__).resolve().parents[2]


def packages() -> set[str]:
    """The packages of the program."""
    return {path.parent.name for path in (ROOT / "fluxmq").glob("*/__init__.py")}


def test_the_architecture_names_every_package_and_no_other() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert set(re.findall(r"^\| `fluxmq/(\w+)` \|", text, re.MULTILINE)) == packages()


def test_the_drawn_layers_are_the_contracts() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    (drawing,) = re.findall(r"```\n(supervisor .*?)```", text, re.DOTALL)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    contract = config["importlinter:contract:layers"]["layers"]

    def names(line: str) -> set[str]:
        return set(re.findall(r"\w+", re.split(r"  +", line.strip())[0]))

    assert [names(line) for line in drawing.strip().split("\n")] == [
        names(line) for line in contract.strip().split("\n")
    ]


def test_modules_named_in_the_architecture_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`(fluxmq/[\w/.]+|sessions/[\w/]+)`", text):
        path = ROOT / name if name.startswith("fluxmq/") else ROOT / "fluxmq" / name
        assert path.exists() or path.with_suffix(".py").exists(), name


def test_every_dependency_has_its_reason() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    wanted = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    named = {
        re.split(r"[<>=;\[ ]", line.strip())[0]
        for block in wanted
        for line in block.split("\n")
        if line.strip() and not line.strip().startswith("#")
    }
    text = "".join(decisions.files().values()).lower()
    missing = {name for name in named if name.lower() not in text and not name.startswith("types-")}
    assert missing == set()


def test_make_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    helped = set(re.findall(r'@echo "make ([\w-]+) ', text))
    assert helped == set(phony.split()) - {"help"}
