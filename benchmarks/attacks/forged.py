"""A forgery of benchmarks/attacks/forgeries.py as an attack of the red team: its answer has to be a right one."""

from dataclasses import dataclass

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.attack_client import AttackRefused
from benchmarks.attacks.engine_place import EnginePlace
from benchmarks.attacks.forgeries import FORGERIES


@dataclass
class Forged:
    """An attempt of the forgery that a sentence names, by a new key from a subnet of its own."""

    sentence: str
    code: str = "no answer"

    async def run(self, place: EnginePlace) -> None:
        """Try it once."""
        forge, _ = FORGERIES[self.sentence]
        client = await place.client(self.sentence)
        try:
            self.code = await forge(client)
        except AttackRefused as refused:
            self.code = refused.code

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State the answer."""
        right = self.code in FORGERIES[self.sentence][1]
        return AttackFinding(tried=1, prevented=right, named=1 if right else None, note=self.code)
