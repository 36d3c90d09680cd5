"""Hold the one import name of the distribution; the nine packages stand beside this folder, and here as links."""

import sys

from echo2._moved import MovedModules

sys.meta_path.append(MovedModules)
