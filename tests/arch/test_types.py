"""The checker of types sees every module of the tests, but for those that `setup.cfg` exempts with a reason."""

import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXEMPTED = 0
"""Modules of the tests that are not checked. The number only shrinks."""
RELAXED = {
    "disallow_untyped_defs",
    "disallow_incomplete_defs",
    "disallow_untyped_calls",
    "warn_unreachable",
    "disable_error_code",
}
"""Checks that apply to the program and not to its tests."""

DISABLED = "possibly-undefined, redundant-expr"


def parsed(text: str) -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read_string(text)
    return config


def exempted(text: str) -> dict[str, str]:
    """Return the modules of the tests that a `setup.cfg` exempts, each with the comment above its section."""
    config = parsed(text)
    found: dict[str, str] = {}
    for section in config.sections():
        modules = section.removeprefix("mypy-").split(",")
        if not section.startswith("mypy-") or not any(name.startswith("tests") for name in modules):
            continue
        relaxed = config[section].get("disable_error_code", DISABLED) == DISABLED
        if relaxed and set(config[section]) <= RELAXED:
            continue
        above = re.search(rf"((?:^#.*\n)*)^\[{re.escape(section)}\]", text, re.MULTILINE)
        assert above is not None
        reason = " ".join(line.lstrip("# ") for line in above[1].splitlines())
        found |= dict.fromkeys(modules, reason)
    return found


def settings() -> str:
    return (ROOT / "setup.cfg").read_text("utf-8")


def test_the_checker_is_given_the_program_and_its_tests() -> None:
    config = parsed(settings())["mypy"]
    packages = {name.strip() for name in config["packages"].split(",")}
    assert packages == {"fluxmq", "fluxmq_spark", "perf", "tests"}
    assert config.getboolean("strict")
    assert "exclude" not in config


def test_the_exempted_modules_become_fewer() -> None:
    found = exempted(settings())
    assert len(found) <= EXEMPTED, f"no more than before are exempted from type checks: {found}"
    assert len(found) == EXEMPTED, f"EXEMPTED can shrink to {len(found)}"


def test_an_exemption_is_of_one_module_and_has_its_reason() -> None:
    for module, reason in exempted(settings()).items():
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file(), f"{module} is no module"
        assert reason, f"say in a comment above its section why {module} is exempted"


def test_no_module_exempts_itself() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    inside = [
        path for path in paths if re.search(r"^# mypy:", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert inside == [], "exemptions stand in setup.cfg alone"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[mypy]\nstrict = True\n", {}),
        ("[mypy-tests.*]\nwarn_unreachable = False\n", {}),
        ("[mypy-other.*]\nignore_errors = True\n", {}),
        ("# Two lines\n# of it.\n[mypy-tests.a]\nignore_errors = True\n", {"tests.a": "Two lines of it."}),
        ("# x\n\n[mypy-tests.a]\nignore_errors = True\n", {"tests.a": ""}),
        ("# x\n[mypy-tests.a,tests.b]\ndisable_error_code = misc\n", {"tests.a": "x", "tests.b": "x"}),
        ("[mypy-tests.*]\nignore_errors = True\n", {"tests.*": ""}),
    ],
)  # fmt: skip
def test_rule_exempted(text: str, found: dict[str, str]) -> None:
    assert exempted(text) == found
