"""A flood of benchmarks/attacks/floods.py as an attack of the red team."""

from dataclasses import dataclass, replace

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.engine_place import EnginePlace
from benchmarks.attacks.floods import Crowd


@dataclass
class Flood:
    """An attempt of a flood. `most_groups`: most made-up groups of one key that may be judged; None: none is handed
    in, or any number may be."""

    crowd: Crowd
    most_groups: int | None = None

    async def run(self, place: EnginePlace) -> None:
        """Flood until cancelled."""
        self.crowd = replace(self.crowd)
        await self.crowd.run(place)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State leases, verdicts, and the most groups of one key. Where no key came to ask, nothing was kept."""
        said = self.crowd.said(place)
        judged = int(said["of one key"])
        asked = sum(one.asked for one in place.lines)
        prevented = asked > 0 and (self.most_groups is None or judged <= self.most_groups)
        note = f"{said['leases']:.0f} leases got, {said['decided']:.0f} groups judged"
        named = None if self.most_groups is None or not judged else judged
        return AttackFinding(tried=len(place.attackers), prevented=prevented, named=named, note=note)
