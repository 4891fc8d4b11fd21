"""The experiments are no part of the package: they are imported from the root of the repository."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
