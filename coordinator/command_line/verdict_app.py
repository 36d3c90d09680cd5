"""`echo2-coord verdict` and `rollouts`: a group's verdict, and what the model says in it."""

from pathlib import Path
from typing import Annotated

import typer

from echo2.coordinator.command_line.command_options import CommandApp, Home, LeaseId

verdict_app = CommandApp(help="Verdicts on groups, by the lease.", no_args_is_help=True)


@verdict_app.command("show")
def verdict_show(lease: LeaseId, home: Home = Path(".")) -> None:
    """Show a verdict: statistic, threshold, Calibration, stored evidence, further checks. Works at any time."""
    from echo2.coordinator.command_line import replay_report
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.submissions import verdict_commands

    place = RunFolder(home)
    print("\n".join(verdict_commands.show(place, replay_report.classes_of(place), lease)))


@verdict_app.command("rerun")
def verdict_rerun(lease: LeaseId, home: Home = Path(".")) -> None:
    """Have a verdict checked again by another scorer process, while its group is stored. The coordinator must run."""
    from echo2.coordinator.submissions import verdict_commands

    print(verdict_commands.submit(home, "rerun", lease))


@verdict_app.command("reverse")
def verdict_reverse(
    lease: LeaseId, why: Annotated[str, typer.Option(help="The node is told.")], home: Home = Path(".")
) -> None:
    """Reverse a verdict: pay a refused group, or take an accepted one back. Needs the running coordinator."""
    from echo2.coordinator.submissions import verdict_commands

    print(verdict_commands.submit(home, "reverse", lease, why))


rollouts_app = CommandApp(help="What the model says: stored rollouts, for your eyes only.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON for programs, a line per group.")]


@rollouts_app.command("ls")
def rollouts_ls(
    home: Home = Path("."),
    best: Annotated[bool, typer.Option("--best", help="Highest mean reward first.")] = False,
    worst: Annotated[bool, typer.Option("--worst", help="Lowest mean reward first.")] = False,
    version: Annotated[int | None, typer.Option(min=0, help="Made with this version.")] = None,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Made by this node: its peer id.")] = None,
    task: Annotated[str, typer.Option(help="Of this task.", show_default=False)] = "",
    prompt: Annotated[int | None, typer.Option(min=0, metavar="INDEX", help="Of this prompt of its task.")] = None,
    words: Annotated[str, typer.Option(help="With this text in prompt or answer.", show_default=False)] = "",
    refused: Annotated[bool, typer.Option("--refused", help="Refused groups.")] = False,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Groups to list.")] = 20,
    as_json: Json = False,
) -> None:
    """List groups of the last 24 hours, newest first, each with its best and its worst answer."""
    import msgspec

    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.nodes.operator_remarks import key_of
    from echo2.coordinator.submissions import rollouts_report
    from echo2.coordinator.verdicts.stored_rollouts import Wanted
    from echo2.runtime.errors import LocalFault

    if best and worst:
        raise LocalFault("--best and --worst are two orders: choose one")
    wanted = Wanted(
        order="best" if best else "worst" if worst else "newest", most=most, version=version, task=task,
        node=None if node is None else key_of(node), prompt=prompt, words=words, refused=refused,
    )  # fmt: skip
    place, count = RunFolder(home), 0
    for group in rollouts_report.find_groups(place, wanted, by_token=as_json):
        count += 1
        print(msgspec.json.encode(group).decode() if as_json else rollouts_report.brief_text(group))
    if not count and not as_json:
        print(rollouts_report.explain_none(place, wanted))


@rollouts_app.command("show")
def rollouts_show(
    lease: LeaseId,
    home: Home = Path("."),
    sample: Annotated[int | None, typer.Option(min=0, help="Only this answer, with its tokens' probabilities.")] = None,
    as_json: Json = False,
) -> None:
    """Show one group: the prompt, every answer with its reward; with --sample, each token with its probability."""
    import msgspec

    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.submissions import rollouts_report

    group = rollouts_report.group_of(RunFolder(home), lease)
    print(msgspec.json.encode(group).decode() if as_json else "\n".join(rollouts_report.full_lines(group, sample)))
