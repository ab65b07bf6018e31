"""Learning rates that change from step to step, by MXNet's schedulers."""
from __future__ import annotations

from collections.abc import Callable

from ..base.checks import positive
from ..mxnet_setup.compat import mx

SCHEDULES = ('constant', 'cosine', 'step')


def check_lr(lr: float | Callable) -> float | Callable:
    """Return a schedule as it is, or a learning rate as a float; raise ValueError if it is not above 0."""
    return lr if callable(lr) else positive('lr', lr)


def schedule(name: str, lr: float, num_steps: int, warmup_steps: int = 0) -> Callable[[int], float]:
    """Return one of MXNet's schedulers: the learning rate of `num_steps` updates as a function of the number, from 1.

    Parameters
    ----------
    name : str
        ``'constant'``; ``'cosine'``: falls to almost 0 along half a cosine; ``'step'``: divided by 10 after half and
        after three quarters of the updates.
    lr : float
        The highest rate.
    warmup_steps : int
        Number of updates in which the rate rises linearly to `lr`, counted in `num_steps`.
    """
    settings = {'base_lr': lr, 'warmup_steps': warmup_steps}
    if name == 'cosine':  # 0 at update num_steps + 1, so that the last update still has an effect
        return mx.lr_scheduler.CosineScheduler(num_steps + 1, **settings)
    at = sorted({max(1, num_steps * quarters // 4) for quarters in (2, 3)})
    return mx.lr_scheduler.MultiFactorScheduler(at, 0.1 if name == 'step' else 1, **settings)
