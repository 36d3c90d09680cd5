"""The kinds of lease: plain, audit, canary.

A new kind of lease is a module here: a `LeaseKind` (coordinator/leases/lease_writer.py), with its offer, its rules, its
tables, and what the end of a lease changes (`Decided`). `GroupService` (coordinator/submissions/group_service.py) names
the kinds in one line, in the order in which they are offered. `Kind` (twin_sets.py) has the names that stand in the
table `leases`.
"""
