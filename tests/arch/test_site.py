"""The documentation holds together: links lead to headings that are there, and the site has every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("*/README.md")])


def anchors(text: str) -> set[str]:
    """The anchors that headings of a page have: lower case, hyphens for spaces, and no punctuation."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        bare = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        base = re.sub(r"[^\w\- ]", "", bare).replace(" ", "-")
        name, number = base, 0
        while name in found:
            number += 1
            name = f"{base}-{number}"
        found.add(name)
    return found


def links(text: str) -> Iterator[tuple[str, str]]:
    """Links with an anchor: the page, empty for the same one, and the anchor."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        page, hash_, anchor = target.partition("#")
        if hash_ and "://" not in target:
            yield page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in links(page.read_text("utf-8")):
        path = (page.parent / target) if target else page
        if path.suffix == ".md":
            assert anchor in anchors(path.read_text("utf-8")), f"{target}#{anchor}"


def test_rule_anchors() -> None:
    text = "# One\n## What `x` is, 3.10\n```\n# no\n```\n### [A](b.md) link\n## One\n"
    assert anchors(text) == {"one", "what-x-is-310", "a-link", "one-1"}
    assert list(links("[a](b.md#c) [d](#e) [f](g.md) [h](https://x.example/#y)")) == [
        ("b.md", "c"),
        ("", "e"),
    ]


def pages_of(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from pages_of(value)
    else:
        assert isinstance(nav, list)
        for each in nav:
            yield from pages_of(each)


def test_the_site_has_every_page_once() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    listed = list(pages_of(settings["nav"]))
    assert len(listed) == len(set(listed))
    hook = (ROOT / "packaging/site/hooks.py").read_text()
    elsewhere = dict(re.findall(r'^    "([\w/]+\.md)": "(\w+\.md)",$', hook, re.MULTILINE))
    assert all((ROOT / source).exists() for source in elsewhere)
    own = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(listed) == own | set(elsewhere.values()) | {"decisions/README.md"}


def test_the_site_can_be_built(tmp_path: Path) -> None:
    """With every warning an error: links, anchors, pages that are not in the navigation."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "First message" in (tmp_path / "site/index.html").read_text()
