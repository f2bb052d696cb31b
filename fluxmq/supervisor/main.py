"""``fluxmq-supervisor``: read the settings, open the data directory, and run the process tree.

The composition root. It exits before anything is started when the settings are wrong (exit code 2)
or the directory is unusable (exit code 3), and reports all errors at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fluxmq import __version__, logs
from fluxmq import settings as configuration
from fluxmq.ipc import descriptors
from fluxmq.ipc.launch import EXIT_BOOT_FAILURE, EXIT_OK, raise_file_limit
from fluxmq.net.link_ends import LinkKind
from fluxmq.protocols.mqtt.scan import COMPILED
from fluxmq.settings import Settings, SettingsError
from fluxmq.storage.errors import StorageError
from fluxmq.supervisor import banner, etcd, group_placement, placement
from fluxmq.supervisor.children import Children
from fluxmq.supervisor.directory import DataDirectory, DataDirectoryError, open_directory
from fluxmq.supervisor.fabric import Fabric, link_kind
from fluxmq.supervisor.group_placement import RelocationError
from fluxmq.supervisor.joined import NotJoinedError, joined
from fluxmq.supervisor.placement import PlacementError, Plan
from fluxmq.supervisor.programs import PROGRAMS, Program
from fluxmq.supervisor.service_manager import ServiceManager
from fluxmq.supervisor.settings_reload import SettingsReload
from fluxmq.supervisor.supervisor import Supervisor
from fluxmq.supervisor.tree import Tree

EXIT_USAGE = 2
"""Exit code for a wrong command line or settings file; nothing was started."""

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")

_EPILOG = """\
signals:
  SIGTERM, SIGINT  stop: no new connections, sessions closed, then exit; a second one kills
  SIGHUP           read the settings again; what may change live does, the rest is named in the log

exit codes:
  0  stopped as asked          2  wrong options or settings; nothing was started
  1  something had to be killed  3  could not start; the reason is in the log
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="fluxmq-supervisor",
        description="Run a FluxMQ node: an acceptor, a control process, and one shard per core.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--config",
        default=configuration.DEFAULT_CONFIG,
        type=Path,
        metavar="FILE",
        help="settings file, YAML (default: every listener on loopback, data in ./data)",
    )
    made.add_argument(
        "--workers",
        default="auto",
        metavar="auto|N",
        help="number of shards; auto is one per usable core (default: auto)",
    )
    made.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="GROUP=CORE",
        help="keep a replication group on the shard of this core; may be repeated",
    )
    made.add_argument(
        "--bind",
        choices=("auto", "always", "never"),
        default="auto",
        help="bind each shard to a core; auto does, unless a quota says that the cores are shared (default: auto)",
    )
    made.add_argument(
        "--check",
        action="store_true",
        help="validate the settings, print those in force with secrets hidden, and exit",
    )
    made.add_argument("--version", action="version", version=f"FluxMQ {__version__}")
    return made


def main(arguments: Sequence[str] | None = None, programs: Mapping[str, Program] = PROGRAMS) -> int:
    """Run the node; return the exit code. ``programs`` are those of the roles."""
    options = parser().parse_args(arguments)
    if not __debug__:
        return _complain("assertions are part of the program: run it without python -O")
    try:
        settings = configuration.load(options.config, os.environ)
        plan = _plan(options.workers, options.pin, options.bind)
    except SettingsError as exc:
        return _complain(*(f"{options.config}: {problem}" for problem in exc.problems))
    except PlacementError as exc:
        return _complain(str(exc))
    refusals = configuration.refusals(settings, plan.workers)
    if refusals:
        return _complain(*(f"{options.config}: {sentence}" for sentence in refusals))
    if options.check:
        for note in configuration.notes(settings, plan.workers):
            _say(f"note: {note}")
        raise_file_limit()
        allowed = descriptors.shares_here(settings, plan.workers)
        _say(f"open files: {descriptors.spell(allowed, plan.workers)}")
        for note in descriptors.notes(settings, allowed, plan.workers):
            _say(f"note: {note}")
        print(configuration.effective(settings), end="")
        return EXIT_OK
    return _run(options.config, settings, plan, programs)


def _plan(workers: str, pins: Sequence[str], bind: str) -> Plan:
    """Place the shards on this machine's usable cores."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        quota = placement.quota_cores(_CPU_MAX.read_text("ascii"))
    except (OSError, UnicodeDecodeError):
        quota = None
    usable = len(cores) if quota is None else min(len(cores), quota)
    worth = bool(pins) or placement.worth_binding(len(cores), quota)
    bound = bind == "always" or (bind == "auto" and worth)
    return placement.plan(placement.parse_workers(workers, usable), cores, pins, bound=bound)


def _run(config: Path, settings: Settings, plan: Plan, programs: Mapping[str, Program]) -> int:
    """Open shared resources, supervise, close."""
    os.umask(0o077)
    logs.configure(settings.log.level, settings.log.format, "supervisor")
    log = logs.get_logger("fluxmq.supervisor")
    try:
        directory = open_directory(Path(settings.storage.data_dir))
    except DataDirectoryError as exc:
        _say(str(exc))
        return EXIT_BOOT_FAILURE
    try:
        given, settings = settings, joined(settings, directory.path, plan.workers)
    except NotJoinedError as problem:
        _say(str(problem))
        directory.close()
        return EXIT_BOOT_FAILURE
    raise_file_limit()
    kind = link_kind()
    hot_path = f"{'compiled' if COMPILED else 'uncompiled'}, shards linked by {kind}s"
    source = "built-in defaults" if config == configuration.DEFAULT_CONFIG else str(config)
    facts = banner.facts(settings, source, plan, directory.path, hot_path)
    allowed = descriptors.shares_here(settings, plan.workers)
    facts["open files"] = descriptors.spell(allowed, plan.workers)
    if sys.stdout.isatty():
        print(banner.text(facts), flush=True)
    else:
        log.info("starting", extra={name.replace(" ", "_"): value for name, value in facts.items()})
    for note in configuration.notes(settings, plan.workers):
        log.warning("%s", note)
    for note in descriptors.notes(settings, allowed, plan.workers):
        log.warning("%s", note)
    member = settings.cluster.member
    if member is not None:
        try:
            note = etcd.note_on(etcd.version_of(etcd.program_of(member)))
        except etcd.EtcdProgramError as problem:
            _say(str(problem))
            directory.close()
            return EXIT_BOOT_FAILURE
        if note:
            log.warning("%s", note)
    try:
        for note in group_placement.notes(
            settings, group_placement.place(directory.path, settings, plan)
        ):
            log.warning("%s", note)
    except (StorageError, RelocationError) as exc:
        _say(f"storage.data_dir: {exc}")
        directory.close()
        return EXIT_BOOT_FAILURE
    try:
        return _supervise(config, given, plan, programs, directory, kind)
    finally:
        directory.close()


def _supervise(
    config: Path,
    settings: Settings,
    plan: Plan,
    programs: Mapping[str, Program],
    directory: DataDirectory,
    kind: LinkKind,
) -> int:
    log = logs.get_logger("fluxmq.supervisor")
    tree = Tree(
        plan.workers, settings.server.shutdown_timeout, etcd=settings.cluster.member is not None
    )
    fabric = Fabric(
        plan,
        tree,
        settings.model_dump_json().encode(),
        settings.broker.ring_bytes,
        kind,
        directory.path,
        directory.run,
    )
    reloading = SettingsReload(config, settings)
    clustered = settings.cluster.enabled and settings.cluster.raft.enabled
    children = Children(programs, clustered)
    service_manager = ServiceManager(os.environ, os.getpid())
    # Programs that start containers wait for these words, which are RabbitMQ's.
    ready = partial(log.info, "Server startup complete")
    supervisor = Supervisor(tree, fabric, children, reloading.read, ready, service_manager)
    supervisor.watch_signals()
    try:
        return supervisor.run()
    finally:
        service_manager.close()
        fabric.close()
        log.info("stopped")


def _say(sentence: str) -> None:
    print(f"fluxmq-supervisor: {sentence}", file=sys.stderr, flush=True)


def _complain(*sentences: str) -> int:
    for sentence in sentences:
        _say(sentence)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
