"""Whether a folder lies on a disk that other machines write to, by the mounts that the system lists.

Rules
1. The kind of a mount decides. A kind that is not listed here, or a system that lists no mounts, counts as a disk of
   this machine.
2. SQLite's write-ahead log has an index in memory, which the processes that use the file share. Two machines share
   none, so on such a disk SQLite writes a rollback journal instead: slower, and right for readers elsewhere too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import psutil

_SHARED_KINDS: Final = {
    "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "drvfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4",
    "prl_fs", "rclone", "s3fs", "smb3", "smbfs", "sshfs", "vboxsf", "virtiofs", "vmhgfs-fuse", "webdav",
}  # fmt: skip
"""Kinds of file systems of a server, or of the machine around a virtual one, without the word fuse in front."""
UNKNOWN_KIND: Final = "unknown"
SHARED_HOME: Final = (
    "a node works there, more slowly, and waits while the server is away: better name a folder on a disk of this "
    "machine with --home"
)
"""What follows for a node whose home lies on such a disk."""


class Disk(NamedTuple):
    """A mounted file system. `kind`: kind by the system's name, as in ext4 or nfs4. `source`: device or share that is
    mounted, as in server:/home."""

    kind: str
    source: str

    @property
    def is_shared(self) -> bool:
        """Whether other machines may write to it (rule 1)."""
        return self.kind.removeprefix("fuse.") in _SHARED_KINDS

    def describe(self) -> str:
        """Return its kind, and where it comes from if it is not of this machine."""
        return f"{self.kind}, from {self.source}" if self.is_shared else self.kind


def disk_of(folder: Path) -> Disk:
    """Return the disk on which a folder lies, or will lie once it is made."""
    place = folder.resolve()
    above = {str(place), *map(str, place.parents)}
    mounts = [one for one in _mounts() if one[0] in above]
    longest = max((len(mount) for mount, _ in mounts), default=0)
    return next((disk for mount, disk in reversed(mounts) if len(mount) == longest), Disk(UNKNOWN_KIND, ""))


def journal_mode(file: Path) -> Literal["WAL", "DELETE"]:
    """Return the journal mode for an SQLite file (rule 2)."""
    return "DELETE" if disk_of(file.parent).is_shared else "WAL"


def _mounts() -> Sequence[tuple[str, Disk]]:
    """Return the mounts as (folder, disk), in the order in which they cover each other."""
    try:
        return [(one.mountpoint, Disk(one.fstype, one.device)) for one in psutil.disk_partitions(all=True)]
    except OSError:
        return []
