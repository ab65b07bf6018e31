"""Trainers that move gradients although their network runs operator by operator, which can write them anywhere."""
from gluon_mgpu.parallel.trainer import Trainer


class Movable:
    """A network, to a Trainer, which has these parameters."""

    gradients_can_move = True

    def __init__(self, params):
        self._params = params

    def collect_params(self):
        return dict(enumerate(self._params))  # in MXNet 2, several may have the same name


def moving(params, *args, **settings):
    """Return a Trainer that moves the gradients of all its parameters."""
    return Trainer(params, *args, **settings, move_gradients=Movable(params))
