"""What a kind of file system means for a trace and an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .finding import NOTE, OK, PROBLEM, WARNING, Finding
from .mounts import MOUNTINFO, Mount, mount_of, mounts, nearest

_DISK: Final = frozenset((
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "apfs",
    "ntfs", "ntfs3", "fuseblk", "rootfs",
))  # fmt: skip
_MEMORY: Final = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_FIXED: Final = frozenset(("squashfs", "erofs", "iso9660", "cramfs", "romfs"))
_NFS: Final = frozenset(("nfs", "nfs4"))
_CLUSTER: Final = frozenset((
    "lustre", "gpfs", "ceph", "beegfs", "gfs2", "ocfs2", "wekafs", "panfs", "orangefs", "glusterfs",
    "quobyte", "pvfs2", "afs",
))  # fmt: skip
_SHARED_FOLDER: Final = frozenset((
    "cifs", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "drvfs",
))  # fmt: skip
# nfs(5): `nolock` and `local_lock` keep locks on this machine; Lustre has them with `flock` alone
_LOCKS_HERE: Final = frozenset(("nolock", "local_lock=all", "local_lock=flock", "localflock"))


def file_system(path: Path, text: str | None = None) -> Iterator[Finding]:
    """What the file system of a run's folder means for its trace and its archive.

    Args:
        path: of a folder, that need not be there yet.
        text: the content of mountinfo; this process's by default.
    """
    text = MOUNTINFO.read_text("utf-8", "surrogateescape") if text is None else text
    mount = mount_of(nearest(path), mounts(text))
    if mount is None:
        yield Finding(NOTE, "file system", f"not known of {path}")
        return
    if "ro" in mount.options or mount.kind in _FIXED:
        yield Finding(
            PROBLEM, "file system", f"{_named(mount)} is mounted to be read only",
            "nothing can be recorded there: give another folder for the run",
        )  # fmt: skip
    yield Finding(*_meaning(mount))


def _meaning(mount: Mount) -> tuple[str, ...]:
    kind, named = mount.kind, _named(mount)
    if kind in _DISK or kind in _FIXED:
        return OK, "file system", f"{named}, this machine's own"
    if kind in _MEMORY:
        return (
            WARNING, "file system",
            f"{named} is memory: trace and archive are gone with the machine or the container, "
            "and they take memory from the training", "give a folder on a disk",
        )  # fmt: skip
    if kind in ("overlay", "aufs"):
        return (
            WARNING, "file system",
            f"{named} is a layer of a container: trace and archive go when it is removed",
            "give a folder of a volume that is mounted into it",
        )  # fmt: skip
    if kind in _NFS:
        return (
            WARNING, "file system",
            f"{named} is on a server: other machines see a new segment after their cache's time, "
            f"up to a minute by default; syncs and checkpoints wait for the network{_locks(mount)}",
            "have all machines keep one time; judge checkpoints where they are stored",
        )  # fmt: skip
    if kind in _CLUSTER:
        return (
            NOTE, "file system",
            f"{named} is shared by machines: made for checkpoints; syncs wait for the "
            f"network{_locks(mount)}",
        )  # fmt: skip
    if kind.startswith("fuse.") or kind == "fuse":
        return (
            WARNING, "file system",
            f"{named} is served by a program (FUSE): whether a rename is whole, a sync reaches a "
            "disk and a lock holds on other machines is up to it; object stores behind one have "
            "none of these", "keep the trace on a disk, and upload it: sdc-guard upload",
        )  # fmt: skip
    if kind in _SHARED_FOLDER:
        return (
            WARNING, "file system",
            f"{named} is another machine's folder: locks and syncs may not go beyond this one",
            "keep the trace on this machine's disk",
        )  # fmt: skip
    return NOTE, "file system", f"{named}: a kind that nothing is known of here"


def _locks(mount: Mount) -> str:
    none = mount.kind == "lustre" and not mount.options & {"flock", "localflock"}
    if none:
        return "; mounted without flock: no rows survive a kill that were not published yet"
    if mount.options & _LOCKS_HERE:
        return "; locks hold on this machine alone: a ledger must not be shared through it"
    return ""


def _named(mount: Mount) -> str:
    return f"{mount.kind} ({mount.source} on {mount.place})"


def places(run: Path, text: str | None = None) -> Iterator[Finding]:
    """Parts of a run that lie on another file system than its folder, by links or mounts.

    Args:
        run: the run's folder.
        text: the content of mountinfo; this process's by default.
    """
    text = MOUNTINFO.read_text("utf-8", "surrogateescape") if text is None else text
    known = mounts(text)
    home = mount_of(nearest(run), known)
    for name in ("trace", "archive", "bisect"):
        if (run / name).exists() and (mount := mount_of(nearest(run / name), known)) != home:
            for found in _of_part(run / name, mount, text):
                yield Finding(found.level, f"{name}/", found.what, found.next_step)


def _of_part(part: Path, mount: Mount | None, text: str) -> Sequence[Finding]:
    return () if mount is None else list(file_system(part, text))
