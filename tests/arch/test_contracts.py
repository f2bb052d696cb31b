"""The import contracts name every package they should; what they say is checked by import-linter in ``make check``."""

import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PURE = {"model", "metrics", "protocols", "routing", "queues", "raft"}


def packages() -> set[str]:
    """The packages of the program."""
    return {path.parent.name for path in (ROOT / "fluxmq").glob("*/__init__.py")}


def contract(name: str, key: str) -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config[f"importlinter:contract:{name}"][key].split()


def test_every_package_is_in_a_layer() -> None:
    layers = {word.strip("()") for word in contract("layers", "layers")} - {"|"}
    assert packages() <= layers


def test_every_deciding_package_is_held_to_purity() -> None:
    sources = set(contract("purity", "source_modules"))
    for package in sorted(PURE & packages()):
        assert f"fluxmq.{package}" in sources, "name the package itself, now that it exists"
    for package in sorted(PURE - packages()):
        assert f"fluxmq.{package}.**" in sources, "a package yet to come is named with .**"
