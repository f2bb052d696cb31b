"""``python -m fluxmq.shards.force_quorum``: make a stopped node's replicas of groups authoritative.

Run by ``fluxmqctl force-quorum`` for groups that have lost their majority for good. Standard input
has, as JSON, the settings, the groups (none: all of which this node is a member) and whether to
apply changes or only report; standard output has a JSON line per group.
"""

from __future__ import annotations

import sys

import orjson

from fluxmq.ipc.launch import EXIT_BOOT_FAILURE, EXIT_OK
from fluxmq.replication.forced_quorum import Forcing
from fluxmq.settings.schema import Settings
from fluxmq.storage.directory import DataPaths, check_version, locked
from fluxmq.storage.errors import StorageError
from fluxmq.storage.files import Files


def main() -> int:
    """Carry out the request on standard input; return 0, or 3 with a message on standard error."""
    asked = orjson.loads(sys.stdin.buffer.read())
    settings = Settings.model_validate_json(asked["settings"])
    files, paths = Files(), DataPaths(settings.storage.data_dir)
    try:
        check_version(files, paths)
        with locked(files, paths):
            forcing = Forcing(files, paths, settings)
            for group in asked["groups"] or forcing.groups():
                found = forcing.force(group, apply=asked["apply"])
                sys.stdout.write(orjson.dumps(found).decode() + "\n")
    except StorageError as problem:
        sys.stderr.write(f"{problem}\n")
        return EXIT_BOOT_FAILURE
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
