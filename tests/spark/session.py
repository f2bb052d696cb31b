"""The Spark session of tests and campaigns: two threads, little memory, nothing written but into one directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import fluxmq_spark

JAVA_MIN = 17
ROOT = Path(__file__).resolve().parents[2]


def java_missing() -> str:
    """Why Spark cannot run here; empty when it can."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return "no java: Spark needs Java 17 or newer"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = told.partition('version "')[2].partition('"')[0].partition(".")[0]
    if not version.isdecimal() or int(version) < JAVA_MIN:
        return f"java {version or '?'}: Spark needs Java 17 or newer"
    return ""


def session(directory: Path, name: str = "fluxmq tests") -> SparkSession:
    """A session on this machine alone; what it keeps is below ``directory``.

    Serial collector and the first compiler only, because tests are short; times are UTC. Workers run this interpreter
    and find the tests' modules as the driver does.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss2m -XX:-UsePerfData"
    java += f" -Dderby.system.home={directory}"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": _short(directory),
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    # By hand: Spark finds only modules that lie in a directory of the path, not those of an editable installation.
    fluxmq_spark.register(made)
    return made


def _short(directory: Path) -> str:
    """Where sockets are: their paths have a hundred bytes, which a test's directory may be longer than."""
    path = str(directory / "sockets")
    if len(path) > 60:
        return "/tmp"
    Path(path).mkdir(parents=True, exist_ok=True)
    return path
