"""One process of a node, started alone: the test plays its supervisor.

Executed instead of forked, because a test process has threads.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from fluxmq.ipc.launch import Launch

_PROGRAM = """
import json, sys
from importlib import import_module
from fluxmq.ipc.launch import Launch, die_with_parent
launch = Launch(**json.loads(sys.argv[2]))
die_with_parent(launch.parent_pid)
import_module(sys.argv[1]).main(launch)
"""


def command(module: str, launch: Launch, before: str = "") -> list[str]:
    """Return the command that runs ``main(launch)`` of a module, after the statements ``before``.

    The process must inherit ``launch.descriptors()``.
    """
    assert not launch.links, "a shard needs the others"
    return [sys.executable, "-c", before + _PROGRAM, module, json.dumps(asdict(launch))]
