"""fluxmqctl loads what a command needs, and nothing that takes long besides."""

import subprocess
import sys

import pytest

SLOW = {
    *("asyncio", "aiohttp", "http.client", "numpy", "pydantic", "sqlite3", "ssl", "yaml"),
    *("fluxmq.control.directory", "fluxmq.settings", "fluxmq.storage.verify"),
}
SCRIPT = """
import sys
from fluxmq.cli.main import run
print(run(sys.argv[1:]), *sys.modules)
"""


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """Exit code of a command, and the modules that it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    code, *names = done.stdout.split()
    return int(code), set(names)


@pytest.mark.parametrize(
    "command", ["ping", "status", "cluster_status", "drain", "await_startup --wait 0"]
)
def test_commands_that_probes_run_load_little(command: str, tmp_path) -> None:
    code, names = loaded("--data-dir", str(tmp_path), *command.split())
    assert code in (3, 4)
    assert sorted(names & SLOW) == []
