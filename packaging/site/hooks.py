"""Pages from outside docs/ for mkdocs, and links to files that are not pages.

Pages are written for people who read them beside the sources. On the site a link to a file of the
sources becomes its text, with the file's name.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages of the site, by where they are among the sources."""
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that lie elsewhere."""
    for source, target in ELSEWHERE.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Point links at pages of the site."""
    own = page.file.src_uri
    sources = {target: source for source, target in ELSEWHERE.items()}
    folder = posixpath.dirname(sources.get(own, f"docs/{own}"))

    def pointed(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        uri = ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if path == "docs/decisions":
            uri = "decisions/README.md"
        if uri is None or files.get_file_from_path(uri) is None:
            return text if path in text.replace("`", "") else f"{text} (`{path}`)"
        near = posixpath.relpath(uri, posixpath.dirname(own) or ".")
        return f"{image}[{text}]({near}{anchor or ''})"

    return LINK.sub(pointed, markdown)
