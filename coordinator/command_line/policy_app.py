"""`echo2-coord policy`: the published versions."""

from pathlib import Path
from typing import Annotated

import typer

from echo2.coordinator.command_line.command_options import PROGRAM, CommandApp, Home
from echo2.coordinator.demo.interruption import terminated_like_interrupted
from echo2.runtime.cli_errors import print_error
from echo2.runtime.exit_codes import Exit

policy_app = CommandApp(help="The published versions in the run's store.", no_args_is_help=True)


@policy_app.command("ls")
def policy_ls(
    home: Home = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """List the versions and the edges that lead to them. Works while the coordinator runs."""
    import msgspec

    from echo2.coordinator.command_line import versions_report
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.settings.named_home import with_home

    rows = versions_report.versions(RunFolder(home))
    if as_json:
        print(msgspec.json.encode(rows).decode())
        return
    print("\n".join(versions_report.lines(rows)))
    if rows:
        command = with_home("echo2-coord policy export FOLDER --version best", home)
        print(f"take one home as a model folder: {command}, or its number")


@policy_app.command("export")
@terminated_like_interrupted()
def policy_export(
    folder: Annotated[Path, typer.Argument(help="The folder to make.", show_default=False)],
    version: Annotated[
        str, typer.Option(help="Its number, latest, or best: the one with the best held-out results.")
    ] = "latest",
    home: Home = Path("."),
    merged: Annotated[
        bool, typer.Option("--merged", help="Of a run of adapters: a whole model instead of the adapter.")
    ] = False,
    gguf: Annotated[bool, typer.Option("--gguf", help="With a GGUF file, for llama.cpp.")] = False,
) -> None:
    """Write a version as a model folder that loads wherever its base loads. Works while the coordinator runs."""
    from echo2.coordinator.command_line import policy_folder
    from echo2.coordinator.database.run_folder import RunFolder

    done = policy_folder.export(RunFolder(home), version, folder, merged=merged, gguf=gguf)
    print(
        f"version {done.version} is in {done.folder} ({done.form}), loaded again, with content root "
        f"{done.root.hex()[:16]}"
    )
    if done.gguf:
        print(f"{done.folder / done.gguf} is for llama.cpp, which loaded it and knows its tokens and ends")
    if done.form != "merged":
        print(f"Verify it anywhere: echo2-coord policy verify {done.folder}")


@policy_app.command("verify")
@terminated_like_interrupted()
def policy_verify(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder that was exported.", show_default="the run's store")
    ] = None,
    home: Home = Path("."),
) -> int:
    """Hash every payload and snapshot again, or compare an exported folder with the version that was signed. Exits with
    81 if one has changed."""
    from echo2.coordinator.command_line import policy_folder, versions_report
    from echo2.coordinator.database.run_folder import RunFolder

    if folder is not None:
        told = policy_folder.verify(folder)
        print(
            f"{folder} has the weights of version {told.version} of run {told.run}, as its policy key signed them "
            f"(content root {told.root[:16]}). Compare the run's id with the one that its operator publishes"
        )
        return Exit.OK

    findings = versions_report.verify(RunFolder(home))
    bad = [one for one in findings if one.fault is not None]
    for one in bad:
        fix = "stop the coordinator and move this file away"
        print_error(PROGRAM, f"{one.path} (version {one.version}): {one.fault}; {fix}")
    print(f"{len(findings)} files hashed again: {len(findings) - len(bad)} intact, {len(bad)} damaged")
    return Exit.TRUST if bad else Exit.OK


@policy_app.command("rollback")
def policy_rollback(
    version: Annotated[
        int | None, typer.Argument(min=0, help="Its number.", show_default="the best by held-out results")
    ] = None,
    home: Home = Path("."),
    rate_factor: Annotated[
        float, typer.Option(min=0.000001, max=1000, help="Of the learning rate, relative to the present one.")
    ] = 1.0,
) -> None:
    """Publish a kept version again, as a newer one. Ends a pause of the guard."""
    from echo2.coordinator.run import operator_commands

    print(operator_commands.command(home, "rollback", version=version, factor=rate_factor)["said"])
