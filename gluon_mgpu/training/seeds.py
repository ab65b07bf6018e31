"""Random numbers that a resumed run draws again."""
import random

import numpy

from ..mxnet_setup.compat import mx


def seed_all(seed: int, epoch: int) -> None:
    """Seed MXNet, NumPy and Python's `random` with a number that depends on a seed and an epoch."""
    number = int(numpy.random.SeedSequence((seed, epoch)).generate_state(1)[0]) % 2**31
    mx.random.seed(number)
    numpy.random.seed(number)
    random.seed(number)
