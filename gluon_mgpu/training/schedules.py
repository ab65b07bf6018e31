"""Learning-rate schedules, built from MXNet's schedulers."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import count, repeat
from numbers import Real
from typing import Any

from ..base.arguments import SMALLEST, at_least_0, integer, positive
from ..mxnet_setup.compat import lr_scheduler

SCHEDULES = ('constant', 'cosine', 'step')


def rates(lr: float | Callable[[int], float] | None, start: int = 1) -> Iterator[float | None]:
    """Iterate over the learning rates of the updates from `start`; None if `lr` is None. Wrong: ValueError."""
    if isinstance(lr, lr_scheduler.LRScheduler):
        lr = copy.deepcopy(lr)  # it has state, and the caller may use it again
        go_to_update(lr, start - 1)
    if callable(lr):
        return (_checked(lr(update), update) for update in count(start))
    return repeat(None if lr is None else _checked(lr, 1))


def _checked(rate: Any, update: int) -> float:
    tiny = isinstance(rate, Real) and 0 < float(rate) < SMALLEST  # MXNet cannot read it
    return at_least_0(f'the learning rate of update {update},', 0 if tiny else rate)


def go_to_update(schedule: Any, num_update: int, lr: float | None = None) -> None:
    """Give a scheduler of MXNet, which changes itself in each update, the state after this one; leave others alone.

    `lr` is its rate before the first update, by default the one that it was made with or got before it was used.
    """
    if not type(schedule).__module__.startswith('mxnet.'):
        return
    # 1. Back to the state before the first update
    if lr is None:
        lr = schedule.warmup_final_lr if getattr(schedule, 'count', 0) else schedule.base_lr
    schedule.base_lr = lr
    schedule.count = schedule.cur_step_ind = 0  # of those that have them
    # 2. Forward: a schedule that has ended by then keeps the rate of its last update
    schedule(min(num_update, getattr(schedule, 'max_update', num_update)))
    schedule(num_update)


class Steps(lr_scheduler.MultiFactorScheduler):
    """MXNet's scheduler without its state: the rate of an update does not depend on the calls before."""

    def __call__(self, num_update: int) -> float:
        if num_update < self.warmup_steps:
            return self.get_warmup_lr(num_update)
        return self.base_lr * self.factor ** sum(num_update > step for step in self.step)


def schedule(name: str, lr: float, num_steps: int, warmup_steps: int = 0) -> Callable[[int], float]:
    """Return an MXNet scheduler, which maps the number of an update, 1 to `num_steps`, to its learning rate.

    In the first `warmup_steps` updates, the rate rises linearly to `lr`. With ``'constant'`` it stays there, with
    ``'cosine'`` it falls to almost 0 along half a cosine, and with ``'step'`` it is divided by 10 after half and after
    three quarters of all updates. Raises ValueError for an unknown name, or numbers of steps that are not possible.
    """
    if name not in SCHEDULES:
        raise ValueError(f'schedule {name!r}: must be one of {", ".join(SCHEDULES)}')
    num_steps = integer('num_steps', num_steps, minimum=1)
    settings = {'base_lr': positive('lr', lr), 'warmup_steps': integer('warmup_steps', warmup_steps, 0, num_steps)}
    if name == 'cosine':  # 0 at update num_steps + 1, so that the last update still has an effect
        return lr_scheduler.CosineScheduler(num_steps + 1, **settings)
    at = sorted({max(1, num_steps * quarters // 4) for quarters in (2, 3)})
    return Steps(at, 0.1 if name == 'step' else 1, **settings)
