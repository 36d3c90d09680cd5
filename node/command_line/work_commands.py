"""The commands by which a node works: join, watch, pause, finish and leave."""

from typing import Annotated, Any

import typer

from echo2.node.command_line.node_answers import (
    ask_node,
    config_of,
    home_of,
    invite_text,
    passphrase,
    say,
    show,
    show_verdict,
)
from echo2.node.command_line.node_options import (
    Device,
    Home,
    InviteFile,
    Json,
    NodeApp,
    Yes,
    with_options_of,
    work_options,
)
from echo2.node.errors import BadConfig
from echo2.runtime.terminal_question import ask_agreement

work_app = NodeApp()


def _seconds(duration: str) -> float:
    number, unit = duration[:-1], duration[-1:]
    if unit not in "smhd" or not number.replace(".", "", 1).isdecimal() or float(number) <= 0:
        raise typer.BadParameter("a duration is a number above 0 and s, m, h or d: 90s, 30m, 2h", param_hint="--for")
    return float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


@work_app.command()
@with_options_of(work_options)
def join(
    invite: Annotated[
        str | None,
        typer.Argument(help="The run's invite, or its page's address; -: from standard input; or in ECHO2_INVITE."),
    ] = None,
    invite_file: InviteFile = None,
    accept_fingerprint: Annotated[
        str | None, typer.Option(help="Join the run of this fingerprint, by its page or on the local network.")
    ] = None,
    **flags: Any,
) -> int:
    """Join a run, and work for it until stopped. Ctrl-C finishes the groups under way; a second one ends at once.

    Without an invite: the run joined last; else one discovered on the local network, once its fingerprint is typed."""
    return _daemon(invite=invite_text(invite, invite_file), accept_fingerprint=accept_fingerprint, **flags)


@work_app.command()
@with_options_of(work_options)
def run(**flags: Any) -> int:
    """Continue the run that was joined last."""
    return _daemon(**flags)


@work_app.command()
def status(
    home: Home = None,
    as_json: Json = False,
    share: Annotated[
        bool, typer.Option("--share", help="Print this node's address on the page, and its badge.")
    ] = False,
) -> None:
    """Show the state of the running node."""
    answer = ask_node(home, command="status")
    if not share:
        return show(answer, as_json)
    from echo2.node.control.share_report import share_of

    show(share_of(answer), as_json)


@work_app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one screen, and end.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Watch the running node: devices, groups, points, lines, and keys to pause, resume, finish, switch caps."""
    from echo2.node.top import top_report

    def ask(**asked: Any) -> dict[str, Any]:
        return ask_node(home, **asked)

    if not once and not as_json:
        return top_report.show(ask)
    for text_line in top_report.once(ask, as_json=as_json) if once else top_report.stream(ask):
        say(text_line)


@work_app.command()
def slow(
    switch: Annotated[str, typer.Argument(help="on, off; or auto: slow_hours count again.")] = "on",
    home: Home = None,
) -> None:
    """Switch the running node to its slow caps (slow_uplink, slow_downlink, slow_duty), or back."""
    states = {"on": True, "off": False, "auto": None}
    if switch not in states:
        raise BadConfig(f"slow takes on, off or auto, not {switch!r}")
    show(ask_node(home, command="slow", slow=states[switch]), False)


@work_app.command()
def caps(
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="CAP=VALUE", help="uplink=4, downlink=none, duty=50; absent: show the caps."),
    ] = None,
    gpu: Device = None,
    home: Home = None,
) -> None:
    """Show the caps in force, or change them in the running node until it ends. A duty is that of --gpu, else of all
    devices."""
    for one in changes or ():
        if "=" not in one:
            raise BadConfig(f"write a value behind {one}, as in `echo2-node caps uplink=4`")
    texts = dict(one.split("=", 1) for one in changes or ())
    show(ask_node(home, command="caps", changes=texts, gpu=gpu), False)


@work_app.command()
def why(
    lease: Annotated[
        str | None, typer.Option(metavar="LEASE", help="Of this lease's verdict.", show_default="of the node")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the one rule that blocks work now, and recent refusals; or the basis of one verdict."""
    if lease is not None:
        show_verdict(home, lease, as_json)
        return
    show(ask_node(home, command="why"), as_json)


@work_app.command()
def appeal(
    lease: Annotated[str, typer.Argument(help="Its 32 hexadecimal digits.", show_default=False)],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Ask for another check of a refused group, by another scorer process; later it shows both answers."""
    show_verdict(home, lease, as_json, ask=True)


@work_app.command()
def pause(
    duration: Annotated[
        float | None, typer.Option("--for", parser=_seconds, metavar="TIME", help="For how long: 90s, 30m, 2h.")
    ] = None,
    gpu: Device = None,
    home: Home = None,
) -> None:
    """Request no new work, and free the device within seconds."""
    show(ask_node(home, command="pause", seconds=duration, gpu=gpu), False)


@work_app.command()
def resume(gpu: Device = None, home: Home = None) -> None:
    """End a pause; a rule that blocks (--hours, --yield-to, --yield-when) is overridden until it has ended once."""
    show(ask_node(home, command="resume", gpu=gpu), False)


@work_app.command()
def finish(home: Home = None) -> None:
    """Complete the groups under way, deliver every submission, end."""
    show(ask_node(home, command="finish"), False)


@work_app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are added, until Ctrl-C.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="How many lines, the last ones.")] = 50,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the log of the node, running or not."""
    from echo2.node.control import log_view

    place = home_of(home)
    for text_line in log_view.last_lines(place, most):
        say(text_line if as_json else log_view.readable(text_line))
    for text_line in log_view.follow(place) if follow else ():
        say(text_line if as_json else log_view.readable(text_line))


@work_app.command()
def leave(
    home: Home = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete key and receipts too: standing, and points, go with them.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Finish, and delete the run's weights from this machine. Key and receipts stay, for another time."""
    from echo2.node.control.leaving import GROUP_SECONDS, check_worked
    from echo2.node.control.leaving import leave as leave_run

    config = config_of(home=home)
    check_worked(config.home)
    if forget and not yes and not ask_agreement("Delete key and receipts of this node for good?", default=False):
        raise BadConfig("nothing is deleted")
    leave_run(config.home, config.drain + GROUP_SECONDS, say, forget=forget)


def _daemon(*, once: bool, **flags: Any) -> int:
    from echo2.node.config import flags_by_device
    from echo2.node.main import start

    return start(config_of(**flags_by_device(flags)), once=once, passphrase=passphrase())
