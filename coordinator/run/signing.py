"""Making and checking the documents of the root key: the Root (keys per role) and the RunSpec (facts of a run).

1. The first Root has serial 1; each later one follows the one before by protocol/authority.py.
2. The coordinator does not start under an expired Root. An expired Root can still be renewed.
3. The RunSpec never changes, and must be signed by the newest Root's `root` role: a thief of an old root key could sign
   another one. When the root keys change, both sets seal the RunSpec before the Root, so it is valid under either.
4. The next Root states a later issue time than the one before, lives `ROOT_LIFE`, and keeps all revocations. A run has
   `MOST_ROOTS` Roots at most.
5. The operator is reminded from `REMINDER_MS` before the newest Root's expiry on.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.environments.task_host import TaskFacts
from echo2.coordinator.run import task_mix
from echo2.coordinator.run.keys import role_keys
from echo2.coordinator.run.model_folder import ModelFacts
from echo2.coordinator.run.price_mode import MARKET, POINTS
from echo2.coordinator.settings.training_config import RunSection
from echo2.engines.temperature import PLAIN_TEMPERATURE, rule_of
from echo2.p2p.envelope import seal
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol import numbers
from echo2.protocol.authority import MOST_ROOTS, RoleKeys, Root, RunSpec, TaskReference
from echo2.protocol.root_chain import ROOT, Untrusted
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import DAY, date

ROOT_LIFE: Final = 365 * DAY
"""Lifetime of a Root, milliseconds."""
REMINDER_MS: Final = 30 * DAY
"""Milliseconds before a Root's expiry at which the reminders begin."""


def sign_root(
    run: bytes, online: Mapping[str, Ed25519PrivateKey], root_keys: Sequence[Ed25519PrivateKey], need: int, now: int
) -> bytes:
    """Make and seal the first Root: one key per online role, and the root keys, of which `need` must sign. All of
    them sign this one. It is valid for `ROOT_LIFE` from `now` (milliseconds)."""
    signers = RoleKeys(keys=[public_bytes(key) for key in root_keys], threshold=need)
    roles = {ROOT: signers} | role_keys(dict(online))
    return seal(
        ROOT, run, encode(Root(run=run, serial=1, roles=roles, expires=now + ROOT_LIFE, issued=now)), *root_keys
    )


def sign_runspec(
    run: bytes,
    settings: RunSection,
    tasks: Sequence[TaskFacts],
    model: ModelFacts,
    root_keys: Sequence[Ed25519PrivateKey],
    settings_hash: bytes | None = None,
    currency: str = "",
) -> bytes:
    """Make the RunSpec of these settings and this model, and seal it with the root keys. `settings_hash`: settings hash
    of how prompts are written (coordinator/run/chat_settings.py). `tasks`: those that the settings name, in their
    order. `currency`: currency in which a market pays; empty: the run pays in points."""
    weights = [task.weight for task in task_mix.parse_mix(settings.task)]
    references = [
        TaskReference(
            name=task.name,
            version=task.version,
            kind=task.kind,
            weight=weight,
            settings_hash=settings_hash,
            other_ends=list(model.other_ends),
        )
        for task, weight in zip(tasks, weights, strict=True)
    ]
    spec = RunSpec(
        run=run,
        name=settings.name,
        model=settings.model,
        assets=list(model.assets),
        eos=model.eos,
        vocabulary=model.vocabulary,
        tasks=references,
        staleness=settings.staleness,
        group_size=settings.group_size,
        limit=settings.limit,
        compute_dtype=settings.compute_dtype,
        engines=list(settings.engines),
        sampling=rule_of(settings.temperature_thousandths),
        temperature=settings.temperature_thousandths,
        price_mode=MARKET if currency else POINTS,
        currency=currency,
        protocols=numbers.number_range(
            model.other_ends, tempered=settings.temperature_thousandths != PLAIN_TEMPERATURE
        ),
        description=settings.description,
        page=settings.page,
        contact=settings.contact,
    )
    return seal("runspec", run, encode(spec), *root_keys)


def next_root(before: Root, now: int, changed: Mapping[str, RoleKeys], revoked: Mapping[bytes, int]) -> Root:
    """Return the Root that follows `before`, not signed yet (rule 4). `changed`: role -> its new keys. `revoked`: key
    -> time of the run (ms) from which on it is revoked. Raises `LocalFault` after the last possible Root."""
    if before.serial >= MOST_ROOTS:
        raise LocalFault(f"this run has had {before.serial} Roots, and no more are possible: make another run")
    return Root(
        run=before.run,
        serial=before.serial + 1,
        roles={**before.roles, **changed},
        issued=max(now, before.issued + 1),
        expires=now + ROOT_LIFE,
        revoked={**before.revoked, **revoked},
    )


def check_life(root: Root, now: int) -> None:
    """Check that the Root has not expired (rule 2). Raises `Untrusted`."""
    if now >= root.expires:
        raise Untrusted(
            f"Root {root.serial} has expired: sign the next one with the root key, by `echo2-coord keys renew`"
        )


def ends_soon(root: Root, now: int) -> str:
    """Return a reminder if the Root expires within `REMINDER_MS` (rule 5), else an empty string."""
    left = root.expires - now
    if left > REMINDER_MS:
        return ""
    day = date(root.expires)
    when = f"ends on {day}, in {left // DAY} days" if left > 0 else f"ended on {day}, and nodes do no more work"
    return f"Root {root.serial} {when}: renew it with the root key, by `echo2-coord keys renew`"
