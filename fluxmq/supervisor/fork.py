"""A child process as a fork of this one, and its first steps.

A fork copies the thread that called it and nothing else: a lock that another thread held stays
locked for ever. So the supervisor has neither threads nor an event loop, and all that its children
need of it is memory: the modules it has imported, whose pages all processes share.

A child lets go of everything else: it resets signals, closes every descriptor that its launch
description does not name, dies with the supervisor, and ends without running what the supervisor
would run at its own end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from typing import NoReturn

from fluxmq import logs
from fluxmq.ipc.launch import Launch, die_with_parent

STANDARD_DESCRIPTORS = (0, 1, 2)
EXIT_CRASH = 1
"""Exit code after an exception that nothing caught, as the interpreter's own."""

_PR_SET_NAME = 15
_ARGUMENTS_START, _ARGUMENTS_END = 45, 46
"""Fields of ``/proc/self/stat`` behind the command's name: where the command line lies."""

_log = logs.get_logger(__name__)


def fork(launch: Launch, program: Callable[[Launch], None]) -> int:
    """Start a child that runs ``program(launch)``; return its process id. Raises OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that arrives before the child has reset its handlers would act for the supervisor.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become_child(launch, program, blocked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return pid


def _become_child(
    launch: Launch, program: Callable[[Launch], None], mask: Collection[int]
) -> NoReturn:
    """Run the child to its end, without ever returning to the supervisor's code."""
    code = EXIT_CRASH
    try:
        die_with_parent(launch.parent_pid)
        os.setpgid(0, 0)  # Ctrl-C reaches only the supervisor, which ends the tree in order
        _reset_signals(mask)
        _keep_descriptors(launch.descriptors())
        bind(launch.cores)
        set_title(f"fluxmq-{launch.process_name}")
        code = _run(launch, program)
        # As multiprocessing ends its forks: waits for threads, those of executors too.
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:  # noqa: BLE001 - the process's outermost frame
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _run(launch: Launch, program: Callable[[Launch], None]) -> int:
    """Run the program; return the exit code."""
    try:
        program(launch)
    except SystemExit as exc:
        if exc.code is not None and not isinstance(exc.code, int):
            sys.stderr.write(f"{exc.code}\n")
            return EXIT_CRASH
        return exc.code or os.EX_OK
    return os.EX_OK


def _reset_signals(mask: Collection[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _keep_descriptors(wanted: Collection[int]) -> None:
    """Close all descriptors but ``wanted`` and the standard ones; standard input reads nothing.

    The objects of the supervisor that own them are never freed here: its frames are still below.
    """
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    after = 0
    for fd in sorted({*STANDARD_DESCRIPTORS, *wanted}):
        if after < fd:  # closerange(0, 0) closes all of them
            os.closerange(after, fd)
        after = fd + 1
    os.closerange(after, os.sysconf("SC_OPEN_MAX"))


def bind(cores: Collection[int]) -> None:
    """Bind this process to ``cores``; ignore a failure, as for a core that was taken away."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as exc:
        _log.warning("cannot bind to cores %s: %s", sorted(cores), exc.strerror)


def set_title(title: str) -> None:
    """Name this process for ``ps``, ``top`` and ``/proc``: a fork has its parent's command line.

    Source: proc_pid_cmdline(5); Linux shows a command line whose last byte is not NUL up to the
    first NUL.
    """
    text = title.encode()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, text, 0, 0, 0)
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
    if start and end - start > 2:
        room = end - start - 1
        ctypes.memmove(start, text[: room - 1].ljust(room, b"\0") + b"\1", room + 1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it any more
