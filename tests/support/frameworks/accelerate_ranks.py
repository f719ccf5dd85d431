"""A training of two processes that Accelerate launches; its argument is the folder of the runs."""

import sys

from accelerate import Accelerator, debug_launcher

import gpulab
from gpulab.integrations.accelerate import Profile
from tests.support.frameworks.plain_loop import train


def main(folder):
    accelerator = Accelerator(cpu=True)
    with Profile(accelerator, out=folder):
        train(accelerator)
    assert gpulab.runs["training"].name == "training"


if __name__ == "__main__":
    debug_launcher(main, (sys.argv[1],), num_processes=2)
