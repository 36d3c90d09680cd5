"""`echo2-coord status`: a summary of a running coordinator, read from its API."""

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.metrics.market_views import MarketView, PaymentView
from echo2.coordinator.metrics.trouble_views import GuardView, PauseView
from echo2.coordinator.metrics.views import AuditView, CanaryView, RunState, StagesView, StageView, TaskRow
from echo2.coordinator.settings.named_home import with_home
from echo2.p2p.errors import Unreachable
from echo2.protocol.money_text import amount_text as money
from echo2.runtime.errors import LocalFault
from echo2.runtime.figures import number_of
from echo2.runtime.lock import is_locked
from echo2.runtime.printable import printable
from echo2.runtime.units import second

if TYPE_CHECKING:
    from echo2.coordinator.settings.network_config import WebSection

PATH: Final = "/api/v1/run"
_ANSWER_SECONDS: Final = 5.0  # seconds
_MOST_ANSWER_BYTES: Final = 64 << 20  # bytes of an answer
INVITE_WAIT_SECONDS: Final = 15.0
"""Seconds for which a coordinator that has no address yet is asked for its invite again."""
ASK_AGAIN: Final = 0.5
MOST_CHANGES: Final = 3
"""Changes of settings that `status` shows."""
STARTING_SENTENCE: Final = ": the learner loads the model, and then the first version is published"
_AS_IN: Final = "write its address as the log of `echo2-coord run` does, as in http://127.0.0.1:8420"
_COMMAND: Final = re.compile(r"(?<=`)echo2-coord (resume|policy rollback)(?=`)")


class OtherFolder(Unreachable):
    """The coordinator that answers has this run in another folder."""


def address_of(web: "WebSection") -> str:
    """Return the page's URL on this machine; an unspecified listening address becomes loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(web.host, web.host)
    return f"http://[{host}]:{web.port}" if ":" in host else f"http://{host}:{web.port}"


def address_in(folder: RunFolder, web: "WebSection | None") -> str:
    """Return the page's URL for a run folder: the one its coordinator wrote there, else that of the settings. `web`:
    None: the settings are read from the folder, but only where they are needed, for that takes longer than the rest of
    the command. Raises `SettingsFault`, and `Unreachable` where the settings leave the port to the system."""
    try:
        return folder.page.read_text().strip()
    except OSError as error:
        if (web := web or _settings_in(folder)).port:
            return address_of(web)
        raise _none_runs(folder) from error


def pages_in(folder: RunFolder) -> list[str]:
    """Return the addresses of the pages of the coordinator that runs in a folder, a line each. Raises `Unreachable`,
    `LocalFault`."""
    try:
        public = folder.page.read_text().strip()
    except OSError as error:
        raise _none_runs(folder) from error
    try:
        private = folder.operator_page.read_text().strip()
    except FileNotFoundError:
        return [f"for everybody  {public}/", "for you only   switched off: web.operator_listen is empty"]
    except OSError as error:
        raise LocalFault(f"{folder.operator_page} belongs to another user: run the command as that user") from error
    return [
        f"for everybody  {public}/",
        f"for you only   {private}",
        "The last address holds the token: keep it to yourself. From another machine, forward its port over SSH.",
    ]


def _none_runs(folder: RunFolder) -> Unreachable:
    start = with_home("echo2-coord run", folder.path)
    return Unreachable(f"no coordinator runs in {folder.path}: start one with `{start}`")


def _settings_in(folder: RunFolder) -> "WebSection":
    from echo2.coordinator.settings import config

    return config.load(folder.config).web


def fetch_of(folder: RunFolder, web: "WebSection | None", run: bytes) -> bytes:
    """Fetch the API's JSON of the coordinator of a run folder, undecoded. `web`: the same as in `address_in`. `run`:
    the run's id. Raises `Unreachable`, also where the coordinator of another run has the port, `OtherFolder`, and
    `SettingsFault`."""
    url = address_in(folder, web)
    body = fetch(url, folder.path)
    if (state := decode(body)).run != run.hex():
        raise Unreachable(
            f"no coordinator runs in {folder.path}: at {url} that of another run answers, {state.name}; "
            f"start yours with `{with_home('echo2-coord run', folder.path)}`, and another --port where both are to run"
        )
    if not _is_served(folder):
        raise OtherFolder(
            f"no coordinator runs in {folder.path}: the one of this run at {url} serves another folder, and this is a "
            "copy. Name that folder with --home, or that page with `echo2-coord status --url`"
        )
    return body


def _is_served(folder: RunFolder) -> bool:
    """Tell whether a coordinator runs in a folder. True where that cannot be read, as in another user's folder."""
    try:
        return is_locked(folder.lock)
    except OSError:
        return True


def fetch(url: str, home: Path = Path()) -> bytes:
    """Fetch the API's JSON from `url`, undecoded. `home`: the run folder, which the command in a message names. Raises
    `Unreachable`."""
    if not url.startswith(("http://", "https://")):
        raise Unreachable(f"{url} is no coordinator's page: {_AS_IN}")
    # The coordinator is on this machine or its network: ignore the proxies of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url.rstrip("/") + PATH, timeout=_ANSWER_SECONDS) as answer:
            body: bytes = answer.read(_MOST_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            raise Unreachable(f"{url} is no coordinator's page (HTTP {error.code}): {_AS_IN}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        start = f"start one with `{with_home('echo2-coord run', home)}`"
        raise Unreachable(f"no coordinator answers at {url} ({reason}): {start}") from error
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"{url} is no coordinator's page (not JSON): {_AS_IN}") from error
    return body


def decode(body: bytes) -> RunState:
    """Decode the API's JSON. Raises `Unreachable` if another program or version sent it."""
    try:
        return msgspec.json.decode(body, type=RunState)
    except msgspec.MsgspecError as error:
        raise Unreachable(f"the coordinator is of another version ({error}): update echo2") from error


def hidden_strangers(folder: RunFolder, web: "WebSection", run: bytes) -> tuple[str, str]:
    """Return what the folder's running coordinator sees of the addresses of strangers, and what to do; "" where it is
    in order, or no coordinator runs. `run`: the run's id."""
    try:
        hidden = decode(fetch_of(folder, web, run)).links.hidden
    except Unreachable:
        return "not known, no coordinator runs in this folder", ""
    actual, _, remedy = hidden.partition("; ")
    return (actual, remedy) if hidden else ("not hidden, as far as the coordinator sees", "")


def invite_of_the_running(folder: RunFolder, web: "WebSection", run: bytes) -> str:
    """Return the invite that the folder's running coordinator gives; its ports were chosen at its start. Waits for one
    that has just started, whose page is there before its addresses are known. `run`: the run's id. Raises
    `Unreachable`."""
    try:
        until = time.monotonic() + INVITE_WAIT_SECONDS
        while not (invite := decode(fetch_of(folder, web, run)).invite) and time.monotonic() < until:
            time.sleep(ASK_AGAIN)
    except Unreachable as error:
        start = with_home("echo2-coord run", folder.path)
        raise Unreachable(
            f"the settings leave the port to the system (port 0), so there is an invite only while the run runs: "
            f"start it with `{start}`, or name a port in network.listen and https.listen"
        ) from error
    if not invite:
        raise Unreachable("the coordinator is still starting: ask again in a few seconds")
    return invite


def lines(state: RunState, home: Path = Path()) -> list[str]:
    """Summarise the run in a few lines. `home`: the run folder, which the commands in them name."""
    wanted = "" if state.steps_wanted is None else f" of {state.steps_wanted}"
    known = max(state.nodes_known, len(state.nodes))
    online = max(state.nodes_connected, sum(node.connected for node in state.nodes))
    size = f", {state.parameters:,} parameters" if state.parameters else ""
    place = f"; step {state.step}{wanted}, version {state.version}" if state.era else ""
    rows = [
        ("run", f"{state.name}, {state.model}{size}"),
        ("phase", f"{state.phase}{place}{STARTING_SENTENCE * (state.phase == 'starting')}"),
        ("groups", f"{state.accepted} accepted, {sum(state.refused.values())} refused, "
                   f"{state.expired} expired, {state.too_old} too old; {state.buffered} in the buffer, "
                   f"{state.undecided} undecided, {state.running} leased"),
        ("nodes", f"{online} connected, {known} known"),
    ]  # fmt: skip
    if state.ledger.entries:
        rows.append(("ledger", ledger_sentence(state)))
    if state.market is not None:
        rows += market_lines(state.market, state.now)
    if state.objective:
        rows.append(("loss", state.objective))
    if state.learning_rate:
        rows.append(("rate", state.learning_rate))
    rows += [("changed", change.sentence()) for change in state.changes[:MOST_CHANGES]]
    if state.idle is not None:
        rows.append(("learner", f"idle {100 * state.idle:.1f} % of the time"))
    if state.window is not None:
        most = f"at most {state.window:.1f} batches of groups on their way to the learner"
        rows.append(("window", f"{most}, of {state.staleness_limit + 1} that S allows"))
    if state.steps:
        last = state.steps[-1]
        rows.append(("reward", f"{last.reward:.3f}, success {last.success:.3f} at step {last.step}"))
        if last.cut_answers:
            rows.append(("cut", f"{100 * last.cut_answers:.1f} % of that step's answers, at the token limit run.limit"))
    rows += stage_lines(state.stages)
    rows += [("task", _task(task)) for task in state.tasks]
    spread = state.broadcast
    if spread.median is not None and spread.p95 is not None and spread.slowest is not None:
        spread_text = f"{spread.median:.2f} s after the announcement (median), {spread.p95:.2f} s (p95)"
        rows.append(("weights", f"with a node {spread_text}, {spread.slowest:.2f} s (slowest of {spread.samples})"))
    if state.evaluations:
        evaluation = state.evaluations[-1]
        rows.append(
            (
                "held out",
                f"sampled {evaluation.sampled:.3f}, greedy {evaluation.greedy:.3f} at version {evaluation.version}",
            )
        )
    rows += _trouble(state)
    return [f"{name:<9}{printable(_with_home(text, home))}" for name, text in rows]


def stage_lines(stages: StagesView) -> list[tuple[str, str]]:
    """Describe the way of the groups learned lately, in medians."""
    if stages.whole is None:
        return []
    parts = ", ".join(f"{part.name} {_amount(part):.2f}" for part in stages.parts)
    unit = "seconds" if stages.whole.steps is None else "steps"
    whole = f"{_amount(stages.whole):.2f} in all"
    of_groups = f"median {unit} from published, of the last {number_of(stages.groups, 'group')} learned"
    return [("stages", f"{of_groups}: {parts}; {whole}"), ("", stages.sentence)]


def _amount(stage: StageView) -> float:
    return stage.seconds if stage.steps is None else stage.steps


def market_lines(market: MarketView, now: int) -> list[tuple[str, str]]:
    """Describe the epoch that runs, what was spent, and what a step costs."""
    currency, running, last = market.currency, market.running, market.last
    if running is None:
        rows = [("market", f"prices in {currency}; no epoch runs")]
    else:
        left, short = max(0, running.ends - now) // 1000, f", {running.short / 1000:g} short" if running.short else ""
        earned = "" if running.earned is None else f"about {money(running.earned)} of "
        clearing = "" if running.clearing is None else f", prices up to {money(running.clearing)} per RE"
        rows = [
            ("market", f"epoch {running.epoch}, {left} s left; {running.active} nodes active, "
                       f"{running.standby} stand by; need {running.need / 1000:g} RE/h{short}{clearing}"),
            ("budget", f"{earned}{money(running.budget)} {currency} in this epoch" + ", which binds" * running.binding),
        ]  # fmt: skip
    spent = f"{money(market.spent)} {currency} in all closed epochs"
    if last is not None:
        spent += f"; the last paid {money(last.paid)} of {money(last.budget)} to {last.nodes} nodes"
    rows.append(("spent", spent))
    if market.step_cost is not None:
        rows.append(("a step", f"about {money(market.step_cost)} {currency}, at what the last epoch paid per second"))
    if market.payments is not None:
        rows.append(("payments", payment_sentence(market.payments, currency)))
    return rows


def payment_sentence(payments: PaymentView, currency: str) -> str:
    """Describe how money leaves the ledger, as node owners read it too."""
    return (
        f"by {payments.rail}, of {money(payments.minimum)} {currency} at least and {money(payments.most)} per node and "
        f"day at most; fee of the payee {money(payments.payee_fee)}"
    )


def ledger_sentence(state: RunState) -> str:
    """Describe the ledger and its newest signed head."""
    ledger = state.ledger
    if not ledger.number:
        return f"{ledger.entries} entries, none of them under a signed head yet"
    ago = max(0, state.now - ledger.issued) // 1000
    return f"{ledger.entries} entries; head {ledger.number}, signed {ago} s ago, covers {ledger.size}"


def _canaries(canaries: CanaryView) -> str:
    """Describe the leases whose answer was known."""
    return (
        f"{number_of(canaries.given, 'lease')} had a known answer ({canaries.of_scorer} of the scorer): "
        f"{canaries.agreed} agreed, {canaries.scored} scored and accepted, {canaries.refused} refused; of the answers "
        f"at hand one owner may know {100 * canaries.largest_share:.0f} %"
    )


def _audits(audits: AuditView) -> str:
    """Describe the leases that two nodes had, and the share of audits in the work."""
    doubted = f", {audits.doubted} speak against the scorer" if audits.doubted else ""
    return (
        f"{number_of(audits.given, 'lease')} went to a second node too: {number_of(audits.agreed, 'pair')} agreed, "
        f"{audits.differed} differed{doubted}; audits and canaries are {100 * audits.share:.1f} % of the accepted work"
    )


def _trouble(state: RunState) -> Iterator[tuple[str, str]]:
    """Describe refusals, failures, waiting, guard and pause."""
    if state.refused:
        yield ("refused", ", ".join(f"{count} {code}" for code, count in sorted(state.refused.items())))
    if state.links.refused:
        turned_away = ", ".join(f"{count} {limit}" for limit, count in sorted(state.links.refused.items()))
        yield ("links", f"{state.links.open} connections open; refused for a limit: {turned_away}")
    if state.links.hidden:
        yield ("links", state.links.hidden)
    if state.root_ends:
        yield ("keys", state.root_ends)
    if state.ledger.foreign:
        yield ("ledger", state.ledger.foreign)
    trouble = state.trouble
    if trouble.reasons:
        failed = "; ".join(f"{groups} for {reason}" for reason, groups in sorted(trouble.reasons.items()))
        yield ("aside", f"groups at which the learner failed: {failed}")
    if trouble.episodes:
        failed = "; ".join(f"{episodes} for {reason}" for reason, episodes in sorted(trouble.episodes.items()))
        yield ("episodes", f"the environment failed: {failed}")
    if state.unscored:
        yield ("unscored", f"{state.unscored} groups are paid to which the task gave no finite reward")
    if state.spare:
        yield (
            "spare",
            f"{state.spare} groups are paid of which a twin is learned from: another node had the lease too",
        )
    if state.canaries.given:
        yield ("canaries", _canaries(state.canaries))
    if state.audits.given or state.audits.share:
        yield ("audits", _audits(state.audits))
    if left_out := state.skipped.get("no-prompt"):
        yield ("prompts", f"{left_out} left out: the task did not give them, or they are too long for the model")
    if trouble.waiting:
        yield ("waiting", trouble.waiting)
    yield from _guard(state.guard)
    if trouble.paused is not None:
        yield ("paused", f"{trouble.paused.why}; {_goes_on(trouble.paused, state.now)}")
    for fault in state.faults:
        yield "fault", f"{second(fault.at)}: {fault.what}"


def _with_home(text: str, home: Path) -> str:
    return _COMMAND.sub(lambda command: with_home(command[0], home), text)


def _task(task: TaskRow) -> str:
    """Describe a task's share, its last groups and its failed episodes."""
    parts = [f"{task.name}: {100 * task.share:.0f} % of the prompts, {task.accepted} groups accepted"]
    if task.reward is not None and task.success is not None and task.signal is not None:
        parts.append(
            f"of the last {task.groups} reward {task.reward:.3f}, success {task.success:.3f}, "
            f"{100 * task.signal:.0f} % with unequal rewards"
        )
    if task.cut:
        parts.append(f"{100 * task.cut:.1f} % of their answers cut")
    if task.missing:
        parts.append(f"{100 * task.missing:.1f} % of their rollouts without a reward")
    if task.bias:
        parts.append(task.bias)
    if task.sampled is not None and task.greedy is not None:
        parts.append(f"held out sampled {task.sampled:.3f}, greedy {task.greedy:.3f}")
    if task.failed:
        reason, _ = max(task.failed.items(), key=lambda one: one[1])
        parts.append(f"{sum(task.failed.values())} failed episodes, most often for {reason}")
    return "; ".join(parts)


def _guard(guard: GuardView) -> Iterator[tuple[str, str]]:
    """Describe the best version, the warnings and the rollbacks."""
    if guard.best_version is not None and (guard.left or guard.rollbacks):
        left = "".join(f"; {task} has {100 * share:.0f} % of its best" for task, share in sorted(guard.left.items()))
        yield "guard", f"best version {guard.best_version}{left}"
    for rule in guard.rows:
        if rule.mood == "warning":
            after = "" if rule.pause_after is None else f" of {rule.pause_after} before a pause"
            yield "warning", f"{rule.title} ({rule.now}), {rule.holds}{after}: {rule.remedy}"
    if guard.ordered is not None:
        yield "rollback", f"version {guard.ordered} is about to be published again"
    for row in guard.rollbacks[-3:]:
        rate = "" if row.rate == 1 else f", learning rate x {row.rate:g}"
        yield "rollback", f"version {row.version} came again as version {row.new_version}{rate}: {row.why}"


def _goes_on(paused: PauseView, now: int) -> str:
    if paused.remedy:
        return paused.remedy
    if paused.until is None:
        return "continue with `echo2-coord resume`"
    minutes = max(0, paused.until - now) / 60_000
    return f"next try in {minutes:.0f} min, or at once by `echo2-coord resume`"
