"""Run an engine in this process, without a host: for tools, benchmarks and tests that wait for it anyway."""

from collections.abc import Sequence

from echo2.engines.engine import Engine, Job, Sample


def generate(engine: Engine, job: Job) -> list[Sample]:
    (samples,) = generate_all(engine, [job])
    return samples


def generate_all(engine: Engine, jobs: Sequence[Job]) -> list[list[Sample]]:
    """Generate several groups together. Raises the error of the first that fails; none is under way then."""
    outcomes: dict[int, list[Sample]] = {}
    try:
        for ticket, job in enumerate(jobs):
            engine.begin(ticket, job)
        while len(outcomes) < len(jobs):
            for ended in engine.step():
                if isinstance(ended.outcome, Exception):
                    raise ended.outcome
                outcomes[ended.ticket] = ended.outcome
    finally:
        for ticket in range(len(jobs)):
            engine.cancel(ticket)
    return [outcomes[ticket] for ticket in range(len(jobs))]
