"""What the distribution for Spark holds: the package, and the module by which Spark finds the source by itself."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_an_installation_has_both_packages(tmp_path: Path) -> None:
    """Spark lists modules of the path that begin with ``pyspark_`` and takes their ``DefaultSource``."""
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)],
        cwd=ROOT / "spark",
        env={**os.environ, "FLUXMQ_PURE": "1"},
        check=True,
        capture_output=True,
    )
    program = (
        "import pkgutil, sys\n"
        "assert 'pyspark_fluxmq' in [each.name for each in pkgutil.iter_modules(sys.path[:1])]\n"
        "import pyspark_fluxmq, fluxmq_spark.jobs.audit\n"
        "print(pyspark_fluxmq.DefaultSource.name(), pyspark_fluxmq.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [
        "fluxmq",
        str(tmp_path / "pyspark_fluxmq" / "__init__.py"),
    ]


def test_only_formats_are_copied(tmp_path: Path) -> None:
    """Modules that are imported, those that these import, and nothing from elsewhere in the broker."""
    formats = runpy.run_path(str(ROOT / "spark/setup.py"))["formats"]
    (tmp_path / "reader.py").write_text("from fluxmq.model.batches import columns\n")
    assert set(formats(tmp_path)) == {"batches", "batch_format", "octets"}
    (tmp_path / "other.py").write_text("if False:\n    import fluxmq.storage.head\n")
    with pytest.raises(
        SystemExit, match=r"imports fluxmq\.storage\.head, and may import fluxmq\.model"
    ):
        formats(tmp_path)
