"""The terms that leases share, the progress of the run, and the room that both leave (rule 2 of lease_table.py)."""

from typing import Literal, NamedTuple

import msgspec

from echo2.protocol.authority import PLAIN_TEMPERATURE


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms that all leases of a run share. Times in milliseconds.

    `staleness`: S. `batch_groups`: groups per step of the learner. `engines`: classes admitted, prefixes of
    "<engine>/<dtype>/<device>". `per_node`: most open leases per unmeasured node. `first_ms`: lifetime of a lease while
    its node is not measured and too few nodes are proven. `least_ms`, `most_ms`: bounds of every lifetime. `refill`:
    the learner's batches leave out groups whose rewards are all equal. `canaries`: their share of all leases
    (coordinator/leases/kinds/canaries.py); 0: there are none. `audits`: the share of leases that a second node gets too
    (audits.py); 0: there are none. `draw`: draw of the learner's batches (coordinator/verdicts/replay_buffer.py, rule
    1). `prompts`: "order": as the tasks have them, "variance": by their last groups
    (coordinator/prompts/prompt_choice.py). `newcomers`: share of the room that new keys get beside known ones
    (room_shares.py). `temperature`: temperature of sampling, in thousandths."""

    staleness: int
    batch_groups: int
    group_size: int
    limit: int
    engines: list[str]
    per_node: int = 3
    first_ms: int = 300_000
    least_ms: int = 20_000
    most_ms: int = 3_600_000
    refill: bool = False
    canaries: float = 0.0
    audits: float = 0.0
    draw: Literal["oldest", "signal"] = "oldest"
    prompts: Literal["order", "variance"] = "order"
    newcomers: float = 0.1
    temperature: int = PLAIN_TEMPERATURE


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the run. `step`: how many of the learner's steps changed the weights, or may have: versions are
    numbered by them, and ages counted. `unchanged`: how many others it made. `version`, `root`: the newest published
    version. `paused`: no lease is given."""

    era: int
    step: int
    version: int
    root: bytes
    paused: bool = False
    finished: bool = False
    unchanged: int = 0

    @property
    def steps_made(self) -> int:
        """All steps of the learner, as the operator counts them."""
        return self.step + self.unchanged


class InFlight(NamedTuple):
    """Groups that may still reach the learner. `undecided`: received, without a verdict. `running`: leased. `scored`:
    those of the undecided ones whose environment scores them now. `late`: those leased whose leases are late
    (lease_lifetime.py, rule 5)."""

    undecided: int
    running: int
    scored: int = 0
    late: int = 0

    @property
    def waiting_for_verdicts(self) -> int:
        """The groups that wait for the scorer, or for a place at their environment."""
        return max(0, self.undecided - self.scored)

    def on_their_way(self, buffered: int) -> int:
        """Return the groups that are on their way to the learner (lease_window.py). `buffered`: groups that may be
        drawn."""
        return buffered + self.undecided + self.running - self.late


def free_slots(progress: Progress, terms: LeaseTerms, version: int, buffered: int, load: InFlight) -> int:
    """Return how many more groups of `version` the learner can draw in time (rule 2)."""
    wanted = (terms.staleness + version + 1 - progress.step) * terms.batch_groups
    return wanted - load.on_their_way(buffered)
