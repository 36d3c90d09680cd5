"""The kinds of lease beside the plain one: audit, canary.

A new kind of lease has its rules in a module here, and its name in `Kind` (twin_sets.py). Its rows in run.sqlite are a
part of `LeaseTable`. `LeaseIssuer._given_by_room` (coordinator/leases/lease_issuer.py) offers the kinds one after the
other, and coordinator/verdicts/verdicts.py says what the end of each changes.
"""
