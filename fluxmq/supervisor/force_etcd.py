"""Program that makes the stopped node's member of etcd the only one of its cluster, with what it has.

For ``fluxmqctl force-quorum``, after the majority of the members is lost for good. Reads the
settings as JSON from standard input, and the node's data directory from its argument.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from fluxmq.settings.clustering import reachable
from fluxmq.settings.schema import Settings
from fluxmq.supervisor.etcd import EtcdProgramError, arguments, program_of, version_of
from fluxmq.supervisor.etcd_members import ASK_SECONDS, context_of

START_SECONDS: Final = 30.0
"""Time for the member to serve: it reads all that it has."""
STOP_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1


def force(settings: Settings, data_dir: Path) -> str:
    """Force the member; return why that is impossible, or nothing."""
    cluster = settings.cluster
    etcd = cluster.member
    if etcd is None:
        return "this node runs no member of etcd"
    directory = Path(etcd.directory(str(data_dir)))
    if not (directory / "member").is_dir():
        return f"there is no member of etcd in {directory}"
    program = program_of(etcd)
    command = arguments(cluster, etcd, str(directory), version_of(program))
    running = subprocess.Popen([program, *command, "--force-new-cluster"])
    url = f"{cluster.url_scheme}://{reachable(etcd.client_addr)}/health"
    context = context_of(cluster)
    if context is not None:
        context.check_hostname = False  # it is this process's own child
    deadline = time.monotonic() + START_SECONDS
    try:
        while time.monotonic() < deadline and running.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=ASK_SECONDS, context=context) as answer:
                    if b'"true"' in answer.read(1024):
                        return ""
            except (OSError, urllib.error.URLError):
                time.sleep(POLL_SECONDS)
    finally:
        running.terminate()
        try:
            running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
    return f"the member of etcd did not start; see {directory}.log"


def main() -> int:
    """Run the program."""
    settings = Settings.model_validate_json(sys.stdin.buffer.read())
    try:
        problem = force(settings, Path(sys.argv[1]))
    except (EtcdProgramError, OSError) as error:
        problem = str(error)
    if problem:
        sys.stderr.write(f"{problem}\n")
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main())
