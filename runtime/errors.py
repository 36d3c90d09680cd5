"""Errors of this machine, whatever package meets them. The message is one line that names the fix.

LocalFault        a key file, a port, a setting, a permission: a person must put it right
└── DiskFull      worth another try once there is room
"""


class LocalFault(Exception):
    """Something on this machine must be put right; the message says what."""


class DiskFull(LocalFault):
    """A write found no room (disk, quota or file size limit); what was there before is intact."""
