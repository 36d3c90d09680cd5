"""`echo2-coord keys`: the run's keys."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.command_options import CommandApp, Home
from echo2.runtime.terminal_question import ask_agreement

keys_app = CommandApp(help="The run's keys.", no_args_is_help=True)
Request = Annotated[
    Path | None, typer.Option("--request", help="Write a request to this file, to be signed where the root key is.")
]
Role = Annotated[
    Literal["root", "policy", "channel", "ledger", "network"], typer.Argument(help="The role whose key it is.")
]
RootPlace = Annotated[
    Path | None, typer.Option("--keys", help="The folder with the root keys.", show_default="keys/ of the run folder")
]


@keys_app.command("show")
def keys_show(home: Home = Path(".")) -> None:
    """Show the public half of each key, and where its file is. Opens no private key."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.run import keys, setup
    from echo2.coordinator.settings import config
    from echo2.protocol.root_chain import ROOT
    from echo2.runtime.units import date

    place = RunFolder(home)
    config.read(place.config)
    _, chain, _, _ = setup.read_documents(place)
    root = chain[-1]
    signers = root.roles[ROOT]
    print(f"run      {root.run.hex()}")
    print(f"Root     {root.serial}, expires {date(root.expires)}")
    print(f"signed   by {signers.threshold} of {len(signers.keys)} root keys")
    for key in keys.describe_keys(place, chain):
        offline = key.role in (ROOT, keys.PAYOUT)
        there = str(key.path) if key.present else "offline" if offline else f"missing: {key.path}"
        print(f"{key.role:<9}{key.fingerprint}  {key.peer}  {there}")


@keys_app.command("renew")
def keys_renew(home: Home = Path("."), request: Request = None, place: RootPlace = None) -> None:
    """Give the run another year: a new Root with the same keys."""
    _change(home, None, request, place)


@keys_app.command("rotate")
def keys_rotate(role: Role, home: Home = Path("."), request: Request = None, place: RootPlace = None) -> None:
    """Replace the key of a role. Documents that the old key signed before stay valid."""
    _change(home, role, request, place)


@keys_app.command("revoke")
def keys_revoke(
    role: Role,
    home: Home = Path("."),
    request: Request = None,
    since: Annotated[str | None, typer.Option("--from", help="UTC, as 2026-11-22T08:00.", show_default="now")] = None,
    place: RootPlace = None,
) -> None:
    """Replace the stolen key of a role: the old key is invalid from a given time on."""
    from echo2.coordinator.run.keys_commands import time_of

    now = command_options.now()
    _change(home, role, request, place, now if since is None else time_of(since, now))


@keys_app.command("make-root")
def keys_make_root(
    out: Annotated[Path, typer.Option("--out", help="The folder of the new key.")] = Path("."),
) -> None:
    """Make another root key, and print its public half for `export-root --add`. It counts once a Root names it."""
    _make("root", out)


@keys_app.command("make-payout")
def keys_make_payout(
    out: Annotated[Path, typer.Option("--out", help="The folder of the new key.")] = Path("."),
) -> None:
    """Make a key that approves payments, and print its public half for `export-root --payout`."""
    _make("payout", out)


def _make(role: str, out: Path) -> None:
    from echo2.coordinator.run import keys
    from echo2.p2p.identity import public_bytes

    public = public_bytes(keys.make_next(out, role, keys.passphrase()))
    print(f"{public.hex()}\nfingerprint {keys.spaced_fingerprint(public)}, in {out}")


@keys_app.command("export-root")
def keys_export_root(
    request: Annotated[Path, typer.Argument(help="The request that it writes.", show_default=False)],
    home: Home = Path("."),
    threshold: Annotated[
        int | None, typer.Option(min=1, max=16, help="Root keys that must sign.", show_default="as before")
    ] = None,
    add: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A root key to add, from make-root.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="FINGERPRINT", help="A root key that counts no more.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--revoke-from", help="When the dropped keys were stolen.", show_default="not stolen")
    ] = None,
    payout: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A key that approves payments, from make-payout.")
    ] = None,
    payout_threshold: Annotated[int, typer.Option(min=1, max=16, help="Payout keys that must sign.")] = 1,
) -> None:
    """Write a request for other root keys or another threshold; without options, for another year."""
    from echo2.coordinator.run import keys_commands
    from echo2.coordinator.run.root_request import SetChange
    from echo2.protocol.authority import RoleKeys

    approvers = [keys_commands.key_of(one, "--payout", "make-payout") for one in payout or []]
    now = command_options.now()
    change = SetChange(
        threshold,
        [keys_commands.key_of(one) for one in add or []],
        [one.replace(" ", "").lower() for one in drop or []],
        None if since is None else keys_commands.time_of(since, now, "--revoke-from"),
        RoleKeys(keys=approvers, threshold=payout_threshold) if approvers else None,
    )
    print("\n".join(keys_commands.export_root(home, request, change, now=now)))


@keys_app.command("sign-root")
def keys_sign(
    request: Annotated[Path, typer.Argument(help="The request.", show_default=False)],
    place: Annotated[Path, typer.Option("--keys", help="The folder with the root keys.")] = Path("."),
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    set_changes: Annotated[
        bool, typer.Option("--changes-root", help="Sign other root keys or another threshold, too.")
    ] = False,
) -> None:
    """Sign a request with the root keys in a folder. Needs no run folder and no network."""
    from echo2.coordinator.run import keys, keys_commands

    secret, agree = keys.passphrase(), _agreement(yes=yes)
    print("\n".join(keys_commands.sign(request, place, secret=secret, confirm=agree, set_changes=set_changes)))


@keys_app.command("import-root")
def keys_install(
    signed: Annotated[list[Path], typer.Argument(help="The signed Root; several files of one.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Install a signed Root. A running coordinator switches to it at once."""
    from echo2.coordinator.run import keys, keys_commands

    print("\n".join(keys_commands.install(home, *signed, secret=keys.passphrase())))


@keys_app.command("request-log")
def keys_request_log(
    request: Annotated[Path, typer.Argument(help="The request that it writes.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Write a request to begin a new log, where nodes hold later heads than a restored ledger."""
    from echo2.coordinator.ledger_files import log_commands

    print("\n".join(log_commands.request(home, request)))


@keys_app.command("sign-log")
def keys_sign_log(
    request: Annotated[Path, typer.Argument(help="The request.", show_default=False)],
    place: Annotated[Path, typer.Option("--keys", help="The folder with the root keys.")] = Path("."),
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Sign the beginning of a new log with the root keys in a folder. Needs no run folder and no network."""
    from echo2.coordinator.ledger_files import log_commands
    from echo2.coordinator.run import keys

    print("\n".join(log_commands.sign(request, place, keys.passphrase(), _agreement(yes=yes))))


@keys_app.command("import-log")
def keys_import_log(
    signed: Annotated[list[Path], typer.Argument(help="The answer; several files of one.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Install the signed beginning of a new log. A running coordinator goes on in it within seconds."""
    from echo2.coordinator.ledger_files import log_commands

    print("\n".join(log_commands.install(home, *signed)))


def _agreement(*, yes: bool) -> Callable[[list[str]], bool]:
    """Return what shows lines, and tells whether they may be signed."""

    def confirm(lines: list[str]) -> bool:
        print("\n".join(lines), flush=True)
        return yes or ask_agreement("Sign this?", default=False)

    return confirm


def _change(
    home: Path, role: str | None, request: Path | None, place: Path | None = None, since: int | None = None
) -> None:
    from echo2.coordinator.run import keys, keys_commands

    now, secret = command_options.now(), keys.passphrase()
    lines = keys_commands.change(home, role, now=now, secret=secret, since=since, out=request, root_place=place)
    print("\n".join(lines))
