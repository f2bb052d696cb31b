"""What the distribution for Spark holds: the package, and the module by which Spark finds the source by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
