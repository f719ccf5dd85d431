"""python -m gpulab: the command line; see gpulab.cli."""

from __future__ import annotations

import sys

from gpulab.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
