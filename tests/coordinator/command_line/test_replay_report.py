"""`echo2-coord recheck`: the verdicts of a run folder run again, in words."""

from echo2.coordinator.command_line.replay_report import lines
from echo2.coordinator.verification.evidence import STAKES, EProcess, NodeEvidence, Stake
from echo2.coordinator.verification.verdict_replay import ReplayedVerdicts


def test_a_report_names_each_key_with_its_evidence_and_each_fault() -> None:
    evidence = NodeEvidence(1, EProcess(1, (Stake.of(1000),) * STAKES), EProcess())
    report = lines(ReplayedVerdicts(3, 2, 4, 1, ["lease aa of x: other"], {"x": evidence}))
    assert report == [
        "x  E of the day 10^3.0, of all groups 0",
        "lease aa of x: other",
        "3 verdicts by evidence run again with the same bits, 2 without their tokens, in their place. 4 verdicts by"
        " near-ties run again with the same bits. 1 verdicts by passes under two versions likewise. 1 faults",
    ]
