"""Make the table of Leduc's approximate equilibrium: `python -m tests.tasks.poker.leduc_solver` (extra `poker`; 20 s).

CFR+ of OpenSpiel (Tammelin, arXiv 1407.5042), `ROUNDS` rounds, the averaged policy, rounded.
"""

import json
import sys
from typing import Final

from echo2.tasks.poker.exploitability import exploitability, open_spiel, open_spiel_game, places
from echo2.tasks.poker.opponents import LEDUC, leduc_equilibrium, leduc_key

ROUNDS: Final = 1_000
DIGITS: Final = 4


def solve() -> dict[str, list[float]]:
    """Return the probabilities of the legal moves, by `leduc_key`."""
    solver = open_spiel().CFRPlusSolver(open_spiel_game("leduc"))
    for _ in range(ROUNDS):
        solver.evaluate_and_update_policy()
    average = solver.tabular_average_policy()
    table = {}
    for name, place in places("leduc").items():
        chances = dict(average.policy_table()[name])
        table[leduc_key(place.situation)] = [round(chances[action], DIGITS) for action in place.actions]
    return dict(sorted(table.items()))


def main() -> int:
    """Write the table, and print what it can lose."""
    rows = ",\n".join(f"{json.dumps(key)}: {json.dumps(chances)}" for key, chances in solve().items())
    LEDUC.write_text(f"{{\n{rows}\n}}\n")
    print(exploitability("leduc", leduc_equilibrium))
    return 0


if __name__ == "__main__":
    sys.exit(main())
