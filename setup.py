"""The optional compiled hot path: which modules are extensions, and how they are built.

Everything else about the project is in setup.cfg. What is compiled, and by which compiler, is said
here and nowhere else. ``CYTHON_MODULES`` run once per packet, run, tick or connection: ordinary
Python that Cython compiles with the C types of the ``.pxd`` beside each, and a few ``.pyx`` that
have no other form. ``MYPYC_MODULES``, through which every message of a queue passes with its batch,
are compiled by mypyc from their annotations. All of it is optional: without a C compiler, or with
``FLUXMQ_PURE=1``, the same files run uncompiled and only speed is lost.

Building in place removes extensions that are older than their source or have none, before anything
is compiled: a stale one would otherwise be imported instead of the newer source. What mypyc
compiles knows the layout of each other's objects, so one that is stale makes all of it stale, and
if one cannot be built none is kept. The load generator's inner loop is compiled in place as well;
it is no part of what is installed.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

CYTHON_MODULES = {
    "fluxmq/model": ("batch_format", "message_batch"),
    "fluxmq/protocols": ("connection",),
    "fluxmq/protocols/mqtt": (
        *(
            "batch_delivery",
            "batches",
            "delivery",
            "identifiers",
            "inflight_range",
            "run",
            "scan",
            "pending_acks",
            "window",
        ),
    ),
    "fluxmq/protocols/amqp091": ("confirms", "delivery", "ledger", "parser", "run"),
    "fluxmq/protocols/amqp10": ("delivery", "parser", "transfer_run"),
    "fluxmq/net": ("_ring", "accept", "accept_batch", "reactor", "route", "sockets"),
    "fluxmq/storage": ("_direct", "_sync"),
    "perf": ("_hot_amqp10", "_hot_client", "_hot_queue"),
}
"""Modules for Cython, by folder: each a ``.py`` or a ``.pyx``."""
IN_PLACE_ONLY = {"perf"}
"""Folders that are no part of what is installed."""
MYPYC_MODULES = {
    "fluxmq/raft": ("*",),
    "fluxmq/cluster": (
        *("connection", "dialled", "guard", "http2", "http2_frames", "http2_sender"),
        *("http2_streams", "protobuf", "raft_messages", "sockets", "wire"),
    ),
    "fluxmq/metrics": ("instruments",),
    "fluxmq/replication": (
        *("audit", "raft_transport", "comparison", "group_log", "incarnation", "queue_plans"),
        *("raft_driver", "replica", "replicated_groups", "shard_logs", "shared_log", "stores"),
    ),
    "fluxmq/shards/durable": ("persistent_links", "links", "retained_rows"),
    "fluxmq/queues": ("*",),
    "fluxmq/storage": (
        *("batch_cache", "head", "log_reader", "open_files", "queue_log", "segment_index"),
        *("segments", "syncer", "wal", "wal_cache", "wal_files", "wal_groups", "wal_mark"),
        *("wal_options", "wal_records", "wal_supply", "wal_writer"),
    ),
    "fluxmq/engine": (
        *("ahead_of_sync", "answers", "clients", "consumers", "counts", "ephemeral", "group"),
        *("group_client", "group_clients", "group_requests", "group_server", "group_time"),
        *("leader_handle", "memory", "migration_fence", "names", "node_groups", "proposal_buffer"),
        *("queue_targets", "replica_client", "service", "state_ports", "store_writes"),
        *("waiting_answers", "wiring"),
    ),
    "fluxmq/sessions/amqp091": (
        *("access", "basic_consume", "basic_get", "channel", "channel_methods", "client"),
        *("connection_info", "content", "deliveries", "direct_reply", "handler", "publish_checks"),
        *("publishing", "settlements", "takers", "transactions"),
    ),
    "fluxmq/shards": ("shared_counts",),
    "fluxmq/shards/amqp": (
        *("admin_queries", "broker", "consumer_requests", "publishing", "replies", "wiring"),
    ),
}
"""Modules for mypyc, by folder. Errors are left out: their classes are made to be derived from."""
LIBRARY = "fluxmq._mypyc"
"""The shared library that they become, beside a stub for each, so that they call each other
directly."""
NOT_FOR_MYPYC = {"__init__", "errors"}
MYPYC_CONFIG = """
[mypy]
ignore_missing_imports = True
always_false = compiled
[mypy-cython]
follow_untyped_imports = True
"""
"""Modules that Cython compiles are read as the type checker reads them: C numbers are int, C code
is not looked at."""
ROOT = Path(__file__).resolve().parent
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
}
CORES = len(os.sched_getaffinity(0))
"""C compilers that run at once, whichever extension their files belong to."""
PROBE = "#include <Python.h>\nint main(void) { return 0; }\n"


def cython_sources() -> dict[str, Path]:
    """Modules for Cython to compile, by dotted name, each with its source relative to the
    project."""
    found = {}
    for folder, names in CYTHON_MODULES.items():
        for name in names:
            for suffix in (".py", ".pyx"):
                source = Path(folder) / (name + suffix)
                if (ROOT / source).exists():
                    found[f"{folder.replace('/', '.')}.{name}"] = source
    return found


def mypyc_sources() -> dict[str, Path]:
    """Modules for mypyc to compile, by dotted name, each with its source relative to the
    project."""
    found = {}
    for folder, names in MYPYC_MODULES.items():
        for name in names:
            for source in sorted((ROOT / folder).glob(f"{name}.py")):
                if source.stem not in NOT_FOR_MYPYC:
                    found[f"{folder.replace('/', '.')}.{source.stem}"] = Path(folder) / source.name
    return found


def mypyc_is_stale() -> bool:
    """Return whether a module that mypyc should have compiled in the tree is absent, or older than
    one of its sources."""
    sources = mypyc_sources()
    built = [built_path(name) for name in (*sources, f"{LIBRARY}__mypyc")]
    if not sources:
        return False
    if not all(path.exists() for path in built):
        return True
    newest = max((ROOT / source).stat().st_mtime for source in sources.values())
    return newest > min(path.stat().st_mtime for path in built)


def built_path(name: str) -> Path:
    """Return the path of a module's extension, built in place for the running interpreter."""
    folder, _, module = name.rpartition(".")
    return ROOT.joinpath(*folder.split(".")) / (module + sysconfig.get_config_var("EXT_SUFFIX"))


def is_stale(source: Path, built: Path) -> bool:
    """Return whether an extension is older than its source or the declarations beside that."""
    inputs = [ROOT / source, (ROOT / source).with_suffix(".pxd")]
    return any(path.exists() and path.stat().st_mtime > built.stat().st_mtime for path in inputs)


def missing() -> list[str]:
    """Modules that should be compiled and have no current extension in the tree."""
    absent = [
        name
        for name, source in cython_sources().items()
        if not built_path(name).exists() or is_stale(source, built_path(name))
    ]
    return absent + (list(mypyc_sources()) if mypyc_is_stale() else [])


def report() -> int:
    """Say in one line what of the hot path is compiled in the tree. 0: all of it."""
    absent, total = missing(), len(cython_sources()) + len(mypyc_sources())
    if not absent:
        print(f"hot path: compiled ({total} modules)")
    elif os.environ.get("FLUXMQ_PURE") == "1":
        print("hot path: uncompiled, as FLUXMQ_PURE=1 asks")
    else:
        print(
            f"hot path: {total - len(absent)} of {total} modules compiled, the others run as Python"
        )
    return 1 if absent else 0


class BuildHotPath(build_ext):
    """Translate and compile what can be; say plainly what cannot."""

    def initialize_options(self) -> None:
        """Begin without anything from mypyc."""
        super().initialize_options()
        self.by_mypyc: list[Extension] = []
        self.failed: list[Extension] = []

    def run(self) -> None:
        """Build in the order: clear what is stale, look for a compiler, translate all, compile
        all."""
        self._remove_stale()
        if not self.extensions:
            return
        if not self._compiler_works():
            print(
                "hot path: no working C compiler with Python's headers (Debian: gcc libc6-dev python3-dev);"
                " everything works without, several times slower"
            )
            self.extensions = []
            self.ext_map = {}
            return
        self._translate()
        if mypyc_is_stale() or not self.inplace:
            self._add_mypyc()
        self.parallel = CORES
        with ThreadPoolExecutor(CORES) as self.compilers:
            super().run()
        self._keep_all_or_none()

    def build_extensions(self) -> None:
        """Compile the files of one extension side by side: what mypyc makes is one with over a
        hundred."""
        self.compiler.compile = self._compile
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Note what could not be built: a library of an earlier build lies where the new one
        would."""
        try:
            super().build_extension(ext)
        except BaseException:
            self.failed.append(ext)
            raise

    def _compile(
        self,
        sources: list[str],
        output_dir: str | None = None,
        macros: list[Any] | None = None,
        include_dirs: list[str] | None = None,
        debug: bool = False,
        extra_preargs: list[str] | None = None,
        extra_postargs: list[str] | None = None,
        depends: list[str] | None = None,
    ) -> list[str]:
        """Compile as ``CCompiler.compile`` does, each file in a compiler process of its own; the
        object files."""
        compiler = self.compiler
        _, objects, extra, preprocessing, build = compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        arguments = compiler._get_cc_args(preprocessing, debug, extra_preargs)
        started = [
            self.compilers.submit(
                compiler._compile, each, *build[each], arguments, extra, preprocessing
            )
            for each in objects
            if each in build
        ]
        for each in started:
            each.result()
        return list(objects)

    def _add_mypyc(self) -> None:
        """Have mypyc translate its modules, and C made of them compiled with the rest."""
        sources = [str(source) for source in mypyc_sources().values()]
        config = Path("build") / "mypyc.ini"
        config.parent.mkdir(exist_ok=True)
        config.write_text(MYPYC_CONFIG)
        options = [f"--config-file={config}", "--cache-dir=/dev/null"]
        try:
            from mypyc.build import mypycify

            found = mypycify(
                [*options, *sources],
                opt_level="2",
                debug_level="0",
                multi_file=True,
                group_name=LIBRARY,
            )
        except (ImportError, SystemExit) as problem:
            print(f"hot path: queues and log are not compiled, mypyc says: {problem}")
            return
        for extension in found:
            extension.optional = True
            # A library's headers are in its package's folder, what is made of its modules is beside that.
            extension.include_dirs.append(str(Path("build") / "fluxmq"))
            name = self.get_ext_fullname(extension.name)
            extension._full_name = name
            extension._links_to_dynamic = extension._needs_stub = False
            self.ext_map[name] = self.ext_map[name.rpartition(".")[2]] = extension
            extension._file_name = self.get_ext_filename(name)
            self.by_mypyc.append(extension)
        self.extensions += self.by_mypyc

    def _keep_all_or_none(self) -> None:
        """Keep the modules that mypyc compiled all together or not at all."""
        built = [Path(self.get_ext_fullpath(each.name)) for each in self.by_mypyc]
        failed = any(each in self.failed for each in self.by_mypyc)
        if not failed and all(path.exists() for path in built):
            for path in built:
                os.utime(path)  # one whose C is the same was not compiled again
            return
        print("hot path: queues and log could not be compiled")
        folder = Path(self.build_lib)
        for path in [*built, *(folder / each._file_name for each in self.by_mypyc)]:
            path.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        sources, of_mypyc = cython_sources(), mypyc_sources()
        if mypyc_is_stale():
            of_mypyc = {}
        for folder in ("fluxmq", *{**CYTHON_MODULES, **MYPYC_MODULES}):
            for built in (ROOT / folder).glob("*" + suffix):
                name = f"{folder.replace('/', '.')}.{built.name.partition('.')[0]}"
                if name in sources:
                    gone = is_stale(sources[name], built)
                else:
                    gone = name not in of_mypyc and not (of_mypyc and folder == "fluxmq")
                if gone:
                    built.unlink()

    def _compiler_works(self) -> bool:
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        include = f"-I{sysconfig.get_path('include')}"
        with tempfile.TemporaryDirectory() as scratch:
            source, target = Path(scratch) / "probe.c", Path(scratch) / "probe.so"
            source.write_text(PROBE)
            command = [*compiler, include, "-shared", "-fPIC", str(source), "-o", str(target)]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"hot path: {error}")
                return False
        return True

    def _translate(self) -> None:
        from Cython.Build import cythonize

        translated = cythonize(
            self.extensions,
            build_dir=str(Path("build") / "cython"),
            compiler_directives=DIRECTIVES,
            exclude_failures=True,
            nthreads=CORES,
            quiet=True,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            # One that Cython refused keeps its Python source, which no C compiler accepts: it is optional, and
            # the build names it.
            extension.sources = sources.get(extension.name, extension.sources)


def extensions() -> list[Extension]:
    """The extensions to build, none under ``FLUXMQ_PURE=1``."""
    if os.environ.get("FLUXMQ_PURE") == "1":
        return []
    return [
        Extension(name, [str(source)], extra_compile_args=["-O3", "-g0"], optional=True)
        for name, source in cython_sources().items()
        if name.partition(".")[0] not in IN_PLACE_ONLY or "--inplace" in sys.argv
    ]


def packages() -> list[str]:
    """The packages to install: those for Spark too in a clone, where an installation is editable;
    otherwise they are a distribution of their own (``spark/setup.py``)."""
    in_place = {"develop", "editable_wheel"}.intersection(sys.argv)
    return [*find_packages(include=["fluxmq*"]), *(find_packages("spark") if in_place else ())]


if __name__ == "__main__":
    setup(
        packages=packages(),
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildHotPath},
    )
