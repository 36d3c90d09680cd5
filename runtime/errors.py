"""Errors of this machine, shared by all packages. The message is one line that names the fix.

LocalFault        a key file, a port, a setting, a permission: a person must put it right
├── DeviceMissing this machine cannot compute on the device that is named
└── DiskFull      worth another try once there is room
"""


class LocalFault(Exception):
    """A fault on this machine that a person must put right; the message names the fix."""


class DeviceMissing(LocalFault):
    """The device that is named is not here, or cannot be used."""


class DiskFull(LocalFault):
    """A write found no room (disk, quota or file size limit); the earlier content is intact."""
