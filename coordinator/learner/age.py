"""The age of a group: the one definition, for the buffer, leases, verdicts, the learner's metrics, page and history.

age = step - version, where `step` is the learner's before the batch (the batch makes step + 1) and `version` is the one
that generated the group. 0 is on policy: the weights that learn from the group are those that made it.
"""


def age(step: int, version: int) -> int:
    """Return the steps that the learner at `step` has gone on since `version`; below 0 for a version yet to come."""
    return step - version


def fresh(step: int, version: int, staleness: int) -> bool:
    """Return whether a group of `version` is young enough for the learner at `step`. `staleness`: S."""
    return age(step, version) <= staleness


def oldest_fresh(step: int, staleness: int) -> int:
    """Return the oldest version that is `fresh` at `step`; below 0 in a run's first steps."""
    return step - staleness
