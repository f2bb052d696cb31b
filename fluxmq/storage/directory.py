"""The data directory: its layout, version and lock, and the placement of groups on shards.

::

    VERSION                                the format's version, one line
    LOCK                                   flocked by the running broker; holds its process number
    placement.json                         workers, local groups, pins, and each group's shard
    meta.db                                metadata (the control process's)
    bans.json                              bans (the control process's)
    nodes.json                             nodes of the cluster (the control process's)
    shards/<i>/wal/                        one write-ahead log for all groups of a shard
    shards/<i>/state.db                    sessions and retained messages of a shard (SQLite, with
                                           -wal and -shm)
    shards/<i>/clock                       last readings of the shard's clocks
    groups/<group>/snapshots/<index>.snap  state of a group
    groups/<group>/queues/<queue>/         the log of a queue: segments, indexes, head

A group may have a directory of its own, on another disk: ``groups/<group>`` is then a symbolic link
to it, and ``.owner`` in it names the data directory that owns it.

Knows names and layout, not the contents of the files below; other modules define their formats.
Names of groups and queues come from users: as directory names they are percent-encoded, and a long
one ends with its hash instead of its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson
import xxhash

from fluxmq.storage.errors import Corruption, FileMissing, StorageError, WriteFailed
from fluxmq.storage.files import Files

FORMAT_VERSION: Final = 3
"""Number in the file VERSION. It grows with every format in the directory that an older program
cannot read: log, batches, segments, snapshots, commands, consumer groups, the tables of shards and
control. A test checks their versions against it."""
OLDEST_FORMAT_VERSION: Final = 1
"""Oldest readable directory; a broker that opens one upgrades it, and older programs refuse it from
then on."""
VERSION_PREFIX: Final = "fluxmq data "

DIRECTORY_NAME_BYTES_MAX: Final = 200
"""Bytes of a directory's name: file systems allow 255, and deletion adds a prefix."""

PLACEMENT_BYTES_MAX: Final = 64 << 20
"""Size above which placement.json is invalid: 100 000 groups take a tenth of it."""

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_DELETED: Final = ".deleted-"
_HASHED: Final = "~"
_OWNER: Final = ".owner"
_OWNED_BY: Final = "fluxmq:"
_NOT_A_GROUPS: Final = frozenset({_OWNER, "groups", "lost+found"})
"""Names allowed in a directory where a group is first placed: other groups' directories may be
below that of the default group, and lost+found is in the root of a disk."""


_WITHOUT_DATA: Final = frozenset({"LOCK", "VERSION", "run", "nodes.json.tmp", "lost+found"})
"""Names in the data directory of a node that has never run; it may be about to join a cluster."""


def data_in(root: str) -> list[str]:
    """Return the names of what a node that has run has left in its data directory."""
    try:
        return sorted(set(os.listdir(root)) - _WITHOUT_DATA)
    except FileNotFoundError:
        return []


class DirectoryError(StorageError):
    """The data directory cannot be used: it is another version's, or in use."""


# --- names -----------------------------------------------------------------------------------------------------------


def directory_name(name: str) -> str:
    """Return the directory name of a group or queue: bytes of UTF-8 other than A-Z a-z 0-9 . _ - as
    %XX.

    A leading dot is encoded too, so that no name is hidden or refers to a parent. Names longer than
    DIRECTORY_NAME_BYTES_MAX are truncated, and end with ~ and the hash of the whole.
    """
    assert name, "a name is not empty"
    raw = name.encode()
    text = name
    if not _PLAIN.issuperset(raw):
        text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    if text[0] == ".":
        text = "%2E" + text[1:]
    if len(text) > DIRECTORY_NAME_BYTES_MAX:
        end = _HASHED + xxhash.xxh3_128_hexdigest(raw)
        text = text[: DIRECTORY_NAME_BYTES_MAX - len(end)] + end
    return text


def name_of(directory: str) -> str | None:
    """Return the name that a directory encodes, None for a hashed one: its files hold the name."""
    if _HASHED in directory or directory.startswith("."):
        return None
    try:
        name = unquote_to_bytes(directory).decode()
    except UnicodeDecodeError:
        return None
    return name if name and directory_name(name) == directory else None


@dataclass(frozen=True, slots=True)
class DataPaths:
    """Paths in the data directory `root`. Values only: nothing is created."""

    root: str

    @property
    def version(self) -> str:
        """The file with the format's version."""
        return f"{self.root}/VERSION"

    @property
    def lock(self) -> str:
        """The file that the running broker locks."""
        return f"{self.root}/LOCK"

    @property
    def placement(self) -> str:
        """The file that assigns groups to shards."""
        return f"{self.root}/placement.json"

    @property
    def shards(self) -> str:
        """The directory of the shards' directories, which are named by number."""
        return f"{self.root}/shards"

    @property
    def groups(self) -> str:
        """The directory of the groups' directories."""
        return f"{self.root}/groups"

    def state(self, shard: int) -> str:
        """Return the file of a shard's sessions and retained messages."""
        return f"{self.shards}/{shard}/state.db"

    def clock(self, shard: int) -> str:
        """Return the file in which a shard stores its clock readings."""
        return f"{self.shards}/{shard}/clock"

    def wal(self, shard: int) -> str:
        """Return the directory of a shard's write-ahead log."""
        return f"{self.shards}/{shard}/wal"

    def group(self, group: str) -> str:
        """Return the directory of a group."""
        return f"{self.groups}/{directory_name(group)}"

    def snapshots(self, group: str) -> str:
        """Return the directory of a group's snapshots."""
        return f"{self.group(group)}/snapshots"

    def queues(self, group: str) -> str:
        """Return the directory of a group's queues' directories."""
        return f"{self.group(group)}/queues"

    def queue(self, group: str, queue: str) -> str:
        """Return the directory of a queue's log."""
        return f"{self.queues(group)}/{directory_name(queue)}"


# --- version and lock ------------------------------------------------------------------------------------------------


def check_version(files: Files, paths: DataPaths, *, create: bool = False) -> int:
    """Refuse a directory of another format; return the version found. Raises DirectoryError,
    StorageError.

    `create` is for a broker that is about to write: a directory without VERSION gets one, unless it
    holds logs already, and an older format's version is raised to this program's, so that older
    programs refuse it.
    """
    try:
        text = files.read_file(paths.version).decode("utf-8", "replace")
    except FileMissing:
        if not create:
            raise DirectoryError(
                f"{paths.root} is not a data directory: it has no VERSION"
            ) from None
        if files.exists(paths.groups) or files.exists(paths.shards):
            raise DirectoryError(f"{paths.root} holds logs but no VERSION") from None
        write_version(files, paths)
        return FORMAT_VERSION
    number = text.removeprefix(VERSION_PREFIX).strip()
    if not text.startswith(VERSION_PREFIX) or not number.isdecimal():
        raise DirectoryError(f"{paths.version} is not a version: {text[:60]!r}")
    if int(number) > FORMAT_VERSION:
        raise DirectoryError(
            f"{paths.root} was written by a newer FluxMQ (format {number}; this one reads {FORMAT_VERSION}):"
            " start it with that version"
        )
    if int(number) < OLDEST_FORMAT_VERSION:
        raise DirectoryError(f"{paths.root} has format {number}, which this FluxMQ does not read")
    if create and int(number) < FORMAT_VERSION:
        write_version(files, paths)
    return int(number)


def write_version(files: Files, paths: DataPaths) -> None:
    """Write this program's format version; durable when it returns. Raises StorageError."""
    files.write_whole(paths.version, f"{VERSION_PREFIX}{FORMAT_VERSION}\n".encode())


@contextlib.contextmanager
def locked(files: Files, paths: DataPaths) -> Iterator[None]:
    """Hold the directory's lock. Raises DirectoryError that names the process holding it."""
    fd = files.open_(paths.lock, create=True)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = files.pread(fd, 32, 0).decode("ascii", "replace").strip()
            by = f"process {holder}" if holder.isdecimal() else "another process"
            raise DirectoryError(f"{paths.root} is in use by {by}") from None
        yield
    finally:
        files.close(fd)


# --- placement -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """The shard of each group, as last written.

    `pins` are the operator's requests; `groups` holds groups that are neither pinned nor on the
    shard that their name selects. `moving`: groups on their way to another shard, which no shard
    may open until their place is decided; everything else still names the old place. `revision`
    counts the writes.
    """

    workers: int
    local_groups: int
    pins: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    moving: Mapping[str, int] = field(default_factory=dict)
    revision: int = 0


def write_placement(files: Files, paths: DataPaths, placement: Placement) -> None:
    """Replace placement.json; durable when it returns. Raises StorageError."""
    content: dict[str, object] = {
        "workers": placement.workers,
        "local_groups": placement.local_groups,
        "pins": dict(placement.pins),
        "groups": dict(placement.groups),
        "moving": dict(placement.moving),
        "revision": placement.revision,
    }
    content["check"] = _placement_check(content)
    files.reach("placement.write")
    files.write_whole(paths.placement, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _placement_check(content: Mapping[str, object]) -> str:
    """Return the check over all other fields: a flipped bit in a number would put a group on a
    wrong shard."""
    rest = {key: value for key, value in content.items() if key != "check"}
    return xxhash.xxh3_64_hexdigest(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS))


def read_placement(files: Files, paths: DataPaths) -> Placement | None:
    """Return the last written placement, None if there is none. Raises Corruption, StorageError."""
    try:
        if files.size(paths.placement) > PLACEMENT_BYTES_MAX:
            raise Corruption(paths.placement, PLACEMENT_BYTES_MAX, "too large for a placement")
        data = files.read_file(paths.placement)
    except FileMissing:
        return None
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Corruption(paths.placement, error.pos, f"not JSON: {error.msg}") from None
    if not isinstance(content, dict) or content.get("check") != _placement_check(content):
        raise Corruption(paths.placement, 0, "the checksum does not match")
    match content:
        case {
            "workers": int(workers),
            "local_groups": int(local_groups),
            "pins": dict(pins),
            "groups": dict(groups),
            "moving": dict(moving),
            "revision": int(revision),
        } if workers > 0 and local_groups > 0:
            placement = Placement(workers, local_groups, pins, groups, moving, revision)
        case _:
            raise Corruption(paths.placement, 0, "workers, local_groups, pins or groups is wrong")
    for group, shard in (*pins.items(), *groups.items(), *moving.items()):
        if type(shard) is not int or shard < 0:
            raise Corruption(paths.placement, 0, f"group {group!r} is on shard {shard!r}")
    return placement


def check_unplaced(files: Files, paths: DataPaths) -> None:
    """Refuse to place groups again when logs exist: the placement was lost. Raises Corruption,
    StorageError."""
    if files.exists(paths.groups) or files.exists(paths.shards):
        what = "missing, and without it the placement of queues on groups and shards is unknown"
        raise Corruption(paths.placement, 0, what)


# --- groups elsewhere ------------------------------------------------------------------------------------------------


def place_group(files: Files, paths: DataPaths, group: str, data_dir: str | None) -> None:
    """Ensure, before a group is opened, that its directory is where the settings put it. Raises
    StorageError.

    None: wherever it is. Otherwise the directory is created when the group is first opened on this
    node, and ``groups/<group>`` becomes a link to it, so that it is found at the usual path;
    durable when this returns. Nothing is ever moved, and a directory of another group or node is
    never taken: DirectoryError says what to do.
    """
    if data_dir is None:
        return
    link, target = os.path.abspath(paths.group(group)), os.path.abspath(data_dir)
    found = files.link_target(link)
    if found is not None and os.path.normpath(os.path.join(os.path.dirname(link), found)) != target:
        raise DirectoryError(
            f"group {group} is in {found}, where {link} leads, and its data_dir is {target}: give it that data_dir"
            " again, or stop the node, move what is there and make the link anew"
        )
    if found is not None:
        if not files.exists(target):
            raise DirectoryError(
                f"group {group} is in {target}, which is not there: is its disk mounted?"
            )
        files.fsync_directory(
            paths.groups
        )  # the process that made the link may have failed before this
        return
    if files.exists(link):
        raise DirectoryError(
            f"group {group} is in {link}, and its data_dir is {target}: leave data_dir out, or stop the node, move what"
            f" is there, and link it: mkdir -p {target} && mv {link}/* {target}/ && rmdir {link} && ln -s {target} {link}"
        )
    _own(files, group, link, target)
    files.make_directory(paths.groups)
    files.reach("group.link")
    files.symlink(target, link)
    files.fsync_directory(paths.groups)


def _own(files: Files, group: str, link: str, target: str) -> None:
    """Claim a directory outside the data directory for the group, permanently."""
    files.make_directory(target)
    mark, owner = f"{target}/{_OWNER}", f"{_OWNED_BY}{link}"
    try:
        files.symlink(owner, mark)  # of several nodes that start at once, one succeeds
    except WriteFailed:
        found = files.link_target(mark)
        if found is None:
            raise
        if found != owner:
            raise DirectoryError(
                f"{target}, the data_dir of group {group}, belongs to {found.removeprefix(_OWNED_BY)}:"
                " every group has a directory of its own on every node"
            ) from None
    held = [name for name in files.listdir(target) if name not in _NOT_A_GROUPS]
    if held:
        raise DirectoryError(
            f"{target}, the data_dir of group {group}, is not empty ({', '.join(held[:3])}), and {link} does not lead"
            f" there: move it away, or, if it is what this node had of the group, ln -s {target} {link}"
        )
    files.fsync_directory(target)


# --- removal ---------------------------------------------------------------------------------------------------------


def delete_directory(files: Files, path: str) -> None:
    """Delete a directory with its files (it has no subdirectories), renaming it first so that no
    half is found.

    Raises StorageError; does nothing when it does not exist.
    """
    parent, _, name = path.rpartition("/")
    number = 0
    while files.exists(doomed := f"{parent}/{_DELETED}{number}-{name}"):
        number += 1  # one of that name was left half removed
    try:
        files.rename(path, doomed)
    except FileMissing:
        return
    files.reach("directory.delete")
    _remove(files, doomed)


def remove_group(files: Files, paths: DataPaths, group: str) -> None:
    """Remove all files of a group that is not open, wherever they are. Raises StorageError; does nothing
    where there are none."""
    path = paths.group(group)
    linked = files.link_target(path)
    if linked is not None:
        _remove_all(files, os.path.normpath(os.path.join(paths.groups, linked)))
        files.unlink(path)
    else:
        _remove_all(files, path)


def _remove_all(files: Files, path: str) -> None:
    try:
        names = files.listdir(path)
    except FileMissing:
        return
    for name in names:
        inner = f"{path}/{name}"
        if os.path.isdir(inner) and not os.path.islink(inner):
            _remove_all(files, inner)
        else:
            files.unlink(inner)
    files.remove_directory(path)


def remove_unknown(files: Files, parent: str, known: Collection[str]) -> list[str]:
    """Remove directories in `parent` that belong to none of the `known` names; return their names.

    Called at the end of a recovery: a directory deleted just before a crash may have reappeared.
    Raises StorageError.
    """
    if not files.exists(parent):
        return []
    kept = {directory_name(name) for name in known}
    unknown = [name for name in files.listdir(parent) if name not in kept]
    for name in unknown:
        _remove(files, f"{parent}/{name}")
    return unknown


def _remove(files: Files, path: str) -> None:
    for name in files.listdir(path):
        files.unlink(f"{path}/{name}")
    files.remove_directory(path)
