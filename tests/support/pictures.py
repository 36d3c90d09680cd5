"""Invented states of runs, for tests of their display. No value here comes from a real run."""

import math
import random

import msgspec

from echo2.coordinator.metrics import group_stages
from echo2.coordinator.metrics.group_stages import GroupTimes
from echo2.coordinator.metrics.market_views import (
    ClosedMarket,
    MarketView,
    NodePay,
    OpenMarket,
    PaymentView,
    SupplyPoint,
)
from echo2.coordinator.metrics.trouble_views import GuardRow, GuardView, PauseView, TroubleView
from echo2.coordinator.metrics.views import (
    BroadcastView,
    CapacityView,
    DeliveryView,
    Evaluation,
    LearnedStep,
    MadeGroup,
    NodeRow,
    NodeView,
    ReserveView,
    RunState,
    StagesView,
    StepPoint,
    TeamRow,
    TransferView,
    VersionRow,
)

STARTED = 1_790_000_000_000
COORDINATOR = "12D3KooWAcoordinatorfWkCj5sVQmYxXo4sN7dT6rJpLgBvHcEa"
CAPACITY = CapacityView(
    step_seconds=None,
    turnaround_seconds=None,
    rollouts_per_step=256.0,
    publish_every=1,
    supply=0.0,
    need=None,
    advice="",
)
EMPTY = RunState(
    objective="",
    run="9f" * 32,
    name="reverse, the first run",
    model="tiny",
    parameters=567_936,
    started=STARTED,
    now=STARTED + 4_000,
    phase="starting",
    era=0,
    version=0,
    step=0,
    steps_wanted=40,
    staleness_limit=4,
    group_size=16,
    batch_groups=16,
    idle=None,
    buffered=0,
    undecided=0,
    running=0,
    received=0,
    accepted=0,
    too_old=0,
    refused={},
    expired=0,
    staleness=[],
    steps=[],
    evaluations=[],
    versions=[],
    capacity=CAPACITY,
    broadcast=BroadcastView(source=COORDINATOR),
    diff_bytes=0,
    full_bytes=0,
    nodes=[],
    invite="echo2-1-" + "mzxw6ytboi" * 14,
    faults=[],
)
"""A run just after its start."""


def node(number: int, **changes: object) -> NodeRow:
    row = NodeRow(
        id=f"12D3KooWQ{number:02d}fWkCj5sVQmYxXo4sN7dT6rJpLgBvHcEaUzR{number:02d}yK",
        name=f"node {number}",
        engine="transformers/float32",
        device="cpu",
        connected=True,
        version=26,
        accepted=100,
        refused=0,
        refusals={},
        rollouts=1600,
        tokens=9_700,
        weight=1_600_000,
        points=1_600_000,
        last_seen=STARTED + 99_000,
    )
    return msgspec.structs.replace(row, **changes)


def steps(count: int, seed: int = 1) -> list[StepPoint]:
    chance = random.Random(seed)
    points = []
    for step in range(1, count + 1):
        level = 0.18 + 0.62 * (1 - math.exp(-step / 14)) + chance.gauss(0, 0.035)
        points.append(
            StepPoint(
                step=step,
                at=STARTED + 3_500 * step,
                reward=round(level, 4),
                success=round(max(0.0, level - 0.12), 4),
                staleness=1.2,
                seconds=1.1,
                metrics={
                    "entropy": round(0.35 + 0.6 * math.exp(-step / 20), 4),
                    "kl": round(0.0004 + 0.0002 * math.sin(step), 6),
                    "grad_norm": round(0.4 + 0.3 * math.exp(-step / 9), 4),
                    "learning_rate": 0.0003 * min(1.0, step / 10),
                    "length": round(6.0 - 0.04 * step % 1, 3),
                    "tokens": 1_536.0,
                },
            )
        )
    return points


def evaluations(versions: list[int]) -> list[Evaluation]:
    return [
        Evaluation(
            version=version,
            at=STARTED + 3_500 * version,
            prompts=512,
            sampled=round(0.17 + 0.6 * (1 - math.exp(-version / 15)), 4),
            greedy=round(0.34 + 0.52 * (1 - math.exp(-version / 11)), 4),
        )
        for version in versions
    ]


def made_by(row: NodeRow) -> NodeView:
    """Return a node with invented groups: one in ten was refused."""
    groups = [
        MadeGroup(
            lease=f"{number:032x}", at=STARTED + 99_000 - 1_700 * number, version=26 - number // 4,
            code="late" if number % 10 == 7 else "", rollouts=0 if number % 10 == 7 else 16,
        )
        for number in range(50 if row.accepted else 0)
    ]  # fmt: skip
    learned = [LearnedStep(step=step, groups=1 + step % 3) for step in range(26, 2, -2 if row.accepted else -99)]
    return NodeView(node=row, groups=groups, learned=learned if row.accepted else [])


NODES = [
    node(1, name="brave-otter", accepted=243, rollouts=3888, tokens=22_940, weight=3_911_000, points=3_911_000),
    node(2, name="Känguru im Keller", device="NVIDIA GeForce RTX 3060, 12 GB", accepted=171, refused=3, version=25,
         refusals={"late": 2, "drift": 1}, rollouts=2736, tokens=16_010, weight=2_702_000, points=2_702_000),
    node(3, name="mac mini", device="Apple M2", accepted=98, rollouts=1568, tokens=9_200, weight=1_540_000,
         points=1_540_000, last_seen=STARTED + 97_000),
    node(4, name="", device="cpu", accepted=31, refused=1, refusals={"late": 1}, rollouts=496, tokens=2_950,
         weight=490_000, points=490_000, connected=False, version=19, last_seen=STARTED + 61_000),
    node(5, name="just-arrived", accepted=0, rollouts=0, tokens=0, weight=0, points=0, version=None),
]  # fmt: skip


def broadcast(nodes: list[str], *, nbytes: int = 40_000_000, senders: int = 4, seed: int = 3) -> BroadcastView:
    """Return an invented broadcast. The first few peers get most from the coordinator, later ones from all others."""
    chance = random.Random(seed)
    takes: list[DeliveryView] = []
    for number, name in enumerate(nodes):
        heard = 0.02 + 0.08 * chance.random()
        complete = 3.2 + 0.05 * number + 0.6 * chance.random()
        fed_by = [COORDINATOR, *chance.sample(nodes[:number], min(number, senders))]
        shares = [0.05 if number > 3 and peer == COORDINATOR else chance.random() for peer in fed_by]
        feeds = [
            TransferView(
                peer=peer,
                nbytes=round(nbytes * share / sum(shares)),
                began=round(heard + 0.3 * chance.random(), 3),
                ended=round(complete - 0.4 * chance.random(), 3),
            )
            for peer, share in zip(fed_by, shares, strict=True)
        ]
        applied = complete + 0.2 + (2.5 if number % 7 == 3 else 0.3) * chance.random()
        takes.append(
            DeliveryView(
                node=name, heard=round(heard, 3), complete=round(complete, 3), applied=round(applied, 3),
                counted=True, feeds=feeds,
            )
        )  # fmt: skip
    takes.sort(key=lambda take: take.complete)
    times = [take.complete for take in takes]
    return BroadcastView(
        source=COORDINATOR, samples=len(takes), median=times[len(times) // 2], p90=times[-1], p95=times[-1],
        slowest=times[-1], applied=max(take.applied for take in takes), version=26, takes=takes,
    )  # fmt: skip


STAGES: StagesView = group_stages.stages(
    [
        GroupTimes(
            step=step, published=STARTED, loaded=STARTED + 480, leased=STARTED + 1_900, waited=40, took=1_350,
            received=STARTED + 3_500, judged=STARTED + 6_200, drawn=STARTED + 7_400 + 3_500 * (step - 20),
        )
        for step in (20, 21)
    ]
)  # fmt: skip
"""Groups that spend most of their time at the learner."""
BUSY = msgspec.structs.replace(
    EMPTY,
    stages=STAGES,
    now=STARTED + 100_000,
    phase="learning",
    era=1,
    version=26,
    step=26,
    idle=0.034,
    window=2.25,
    buffered=9,
    undecided=3,
    running=12,
    received=550,
    accepted=543,
    too_old=2,
    refused={"late": 3, "drift": 1},
    expired=2,
    staleness=[31, 188, 142, 40, 8],
    steps=steps(26),
    evaluations=evaluations([0, 8, 16, 24]),
    versions=[
        VersionRow(
            era=1,
            version=version,
            at=STARTED + 3_500 * version,
            diff_bytes=None if version == 0 else 21_000 + 977 * (version * 7 % 13),
            full_bytes=1_141_600,
            first_node_seconds=None if version == 26 else round(0.21 + 0.013 * (version * 5 % 7), 3),
        )
        for version in range(27)
    ],
    capacity=msgspec.structs.replace(
        CAPACITY,
        step_seconds=1.13,
        turnaround_seconds=2.4,
        supply=251.0,
        need=248.9,
        advice="The nodes keep the learner busy.",
        gamma=1.1,
        newcomers=0.1,
        reserves=[
            ReserveView(reserve=1.1, need=248.9, nodes=2, age=None),
            ReserveView(reserve=1.5, need=339.4, nodes=3, age=3.02),
            ReserveView(reserve=2.0, need=452.5, nodes=None, age=2.58),
        ],
    ),
    broadcast=broadcast([row.id for row in NODES[:3]], nbytes=27_000),
    diff_bytes=26 * 27_000,
    full_bytes=26 * 1_141_600,
    nodes=NODES,
)
"""A run halfway to its end."""
FINISHED = msgspec.structs.replace(
    BUSY,
    now=STARTED + 160_000,
    phase="finished",
    version=40,
    step=40,
    undecided=0,
    running=0,
    buffered=0,
    received=547,
    refused={"late": 4},
    steps=steps(40),
    evaluations=evaluations([0, 8, 16, 24, 32, 40]),
)
"""The same run at its end."""


def supply(nodes: int = 24, seed: int = 5) -> list[SupplyPoint]:
    """Return an invented supply curve: milli-RE per hour, cheapest first."""
    chance = random.Random(seed)
    costs = sorted(int(2_000 + 60_000 * chance.random() ** 2) for _ in range(nodes))
    rates = [chance.randrange(800_000, 9_000_000) for _ in costs]
    return [SupplyPoint(rate=sum(rates[: place + 1]), cost=cost) for place, cost in enumerate(costs)]


MARKET = MarketView(
    currency="USD",
    entry=40_213,
    closes=None,
    payments=PaymentView(rail="bank", minimum=5_000_000_000, most=100_000_000_000, payee_fee=250_000_000),
    running=OpenMarket(
        epoch=52,
        opened=STARTED,
        ends=STARTED + 900_000,
        need=60_000_000,
        reserve=60_000,
        budget=1_250_000_000,
        forfeits=0,
        earned=412_345_678,
        active=14,
        standby=6,
        run_off=1,
        short=0,
        binding=False,
        clearing=21_400,
        supply=supply(),
    ),
    last=ClosedMarket(
        epoch=51,
        opened=STARTED - 900_000,
        closed=STARTED,
        budget=1_250_000_000,
        paid=301_200_400,
        work=14_800_000,
        nodes=13,
        short=0,
        binding=False,
        entry=39_950,
    ),
    spent=14_302_100_005,
    step_cost=368_133,
)
PAYS = [
    NodePay(place="active", rank=1, price=21_400, work=3_911_000, pay=83_695_400, unvested=16_739_080,
            accrued=856_000, payable=2_301_450_000),
    NodePay(place="standby", rank=2, work=2_702_000, pay=57_822_800, unvested=11_564_560, accrued=856_000,
            payable=902_000_000),
    NodePay(place="run-off", price=18_900, work=12_000, pay=226_800, unvested=45_360, payable=12),
    NodePay(),
    NodePay(place="active", rank=14, price=40_000),
]  # fmt: skip
SCORES = [61_500, 29_900, 3_000, 0, 0]
PAID_NODES = [
    msgspec.structs.replace(row, pay=pay, score=score) for row, pay, score in zip(BUSY.nodes, PAYS, SCORES, strict=True)
]
TEAMS = [
    TeamRow(id="ab" * 32, name="Foxes of <the> north", members=12, groups=4_210, weight=9_124_000, score=3_501_200),
    TeamRow(id="cd" * 32, name="", members=0, groups=31, weight=61_000, score=900),
]
PAID = msgspec.structs.replace(BUSY, market=MARKET, nodes=PAID_NODES, teams=TEAMS)
"""A run in full swing that pays money."""
EVERY_METRIC = (
    msgspec.structs.replace(
        PAID,
        trouble=TroubleView(paused=PauseView(kind="operator", why="moving", since=0, until=None)),
        guard=GuardView(
            rows=[GuardRow(kind="cut", title="it is cut", now="", mood="ok", holds=0, pause_after=16, remedy="mend it")]
        ),
        links=msgspec.structs.replace(PAID.links, refused={"web": 3}),
    ),
    BUSY,
)
"""Runs that together have a value of each metric."""
