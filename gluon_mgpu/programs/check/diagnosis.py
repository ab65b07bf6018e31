"""Find out what is wrong with a training step on several devices."""
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy

from ...data.shards import shard_rows
from ...mxnet_setup.compat import gluon
from .contents import DRIFTS, NEW_TRAINER, drifting, find, older
from .step_comparison import Comparison, compare, largest, share_of_halves, updates
from .user_step import Training
from .weights import RESIDUAL, explain, explain_scaling, number, row_weights

PRECISION = {'float64': 1e-3, None: 0.01}  # of a weight
COPIES = ('copies without gradients, such as a moving average, a target network or momentum, differ from those of one '
          'device on', 'update them on all devices after every batch, including devices without rows; what each device '
          'keeps for itself, leave out of what make returns')
ALONE = 'Without the batches before, from the same parameters, this does not happen.'
KEY_VALUE_STORE = "the Trainer's key-value store"
LOCAL_UPDATES = ('make the Trainer with update_on_kvstore=False; with plain SGD, param.set_data() is enough',
                 'With update_on_kvstore=False, k devices equal one.')


def diagnose(several: Training, batches: Sequence, devices: list[str]) -> list[str]:
    """Return fault, remedy and evidence, one line each, for a step whose parameters differ from one device's."""
    start, *others = several.values()
    if any(largest(start, other).any() for other in others) and not compare(several, batches, start).wrong:
        return _lines('WRONG: the devices start with different parameters',
                      'draw the parameters once, and copy them to all devices',
                      'From the same parameters, k devices equal one.')
    trainers = [trainer for _, trainer in find(several.state, gluon.Trainer)]
    if stale := next(filter(None, map(older, trainers)), None):
        return _lines(f'WRONG: {stale}', NEW_TRAINER)
    with_state, several = several, replace(several, plain_sgd=True)
    try:
        found = compare(several, batches, start)
    except Exception:  # the step needs its own optimizer
        several = with_state
        found = compare(several, batches, start)
        if drift := _drift(several, found, start):
            return drift
    if not found.wrong:
        return _optimizer(with_state, compare(with_state, batches, start), start)
    n = len(found.batches[-1][0])
    where = (f'WRONG in {len(found.wrong)} of {len(found.rows)} parameters after batch {len(found.batches)}, of {n} '
             f'{"row" if n == 1 else "rows"}')
    on = ', '.join(devices[i] for i in found.wrong_on)
    copies = _lines(f'{where}: {COPIES[0]} {on}', COPIES[1]) if found.wrong[-1] >= found.trained else []
    if found.wrong[0] >= found.trained:
        return copies
    found = found._replace(wrong=[i for i in found.wrong if i < found.trained])
    if not numpy.isfinite([differences for _, *differences in found.rows]).all():
        on_one = numpy.isfinite(updates(several.on_one_device(), found, found.batches)).all()
        return _lines(f'{where}: parameters become NaN or infinite{"" if on_one else ", on one device as well"}',
                      'look for a division by 0, such as the mean of no rows')
    if len(found.unchanged) == found.trained:
        return _lines(f'{where}: {len(devices)} devices update their parameters after this batch, and one device does '
                      'not', 'update after the same batches on any number of devices: count batches, not shards')
    if not compare(replace(several, zero_gradients=True), batches, start).wrong:
        idle = f', from {", ".join(devices[n:])} without rows' if n < len(devices) else ''
        return _lines(f'{where}: the gradient of the batch before is added{idle}',
                      'set the gradients of devices without rows to zero before the sum: zero_grad(net, '
                      "devices[len(y):]), or param.grad[:] = 0; with grad_req 'add', those of all devices",
                      'If all gradients are set to zero before each step, this does not happen.')
    if trainers and _is_right(replace(several, on_kvstore=False), found, start):
        return _lines(f'{where}: {KEY_VALUE_STORE} updates its own copy of the parameters, and undoes what the step '
                      'writes into them', *LOCAL_UPDATES)
    return _batch(several, found, where, devices, copies)


def _settings(several: Training) -> str:
    """Return which setting of an optimizer depends on the number of devices, or ''."""
    several, one = replace(several), replace(several.on_one_device())
    for (_, trainer), (_, other) in zip(find(several.state, gluon.Trainer), find(one.state, gluon.Trainer)):
        for name, value in vars(trainer.optimizer).items():
            alone = getattr(other.optimizer, name, value)
            if isinstance(value, (int, float)) and alone != value:
                return (f'the setting {name} of {type(trainer.optimizer).__name__} is {value:g} on '
                        f'{len(several.devices) * several.workers.size} devices, and {alone:g} on one')
    return ''


def _optimizer(several: Training, found: Comparison, start: list) -> list[str]:
    if differing := _settings(several):
        return _lines(f'WRONG: {differing}', 'give the optimizer the same settings on any number of devices, since the '
                      'gradients are summed and divided by the rows')
    if drift := _drift(several, found, start):
        return drift
    if _is_right(replace(several, on_kvstore=False), found, start):
        return _lines(f'WRONG: {KEY_VALUE_STORE} loses the state of the optimizer, as with param.set_data()',
                      *LOCAL_UPDATES)
    if not any(found.rows[i][2] for i in found.wrong):
        return _lines('NOT CHECKED: the devices equal each other, and with plain SGD instead, they equal one: the '
                      'optimizer enlarges rounding errors, as Adam does where gradients are 0',
                      'check the step with SGD, or without casts, so that it can compute in float64')
    return _lines('WRONG: the state of the optimizer differs',
                  'update every device after every batch, including devices without rows',
                  'With plain SGD instead, k devices equal one.')


def _drift(several: Training, found: Comparison, start: list) -> list[str]:
    """Return fault and remedy if only the key-value store may call the optimizer, which is possibly the user's own."""
    name = drifting(several.state) if len(several.devices) > 1 else ''
    if not name and _is_right(replace(several, on_kvstore=True), found, start):
        name = next(type(trainer.optimizer).__name__ for _, trainer in find(several.state, gluon.Trainer))
    return _lines(f'WRONG: {name} {DRIFTS[0]}', DRIFTS[1]) if name else []


def _batch(several: Training, found: Comparison, where: str, devices: list[str], copies: list[str]) -> list[str]:
    """Return the lines for a step whose last batch alone is wrong."""
    weights, same = row_weights(several, found), partial(numpy.allclose, rtol=0, atol=PRECISION[several.dtype])
    n, k, alone = len(found.batches[-1][0]), len(devices), _is_right_alone(several, found)
    shards = [shard_rows(n, i, k) for i in range(min(n, k))]
    if alone and (weights is None or same(weights, 1)):
        return _lines(f'{where}: what the step keeps from the batches before, such as momentum or gradients, differs '
                      'from one device', 'keep it on every device, and update it after every batch, including devices '
                      'without rows', ALONE)
    if copies and weights is not None and same(weights, 1):
        return copies
    random = _is_random(several, found) if weights is None or same(weights, 1) else False
    if weights is not None and not random:
        clipped = not share_of_halves(several, found.batches[-1])
        fault, remedy = explain(weights, devices, shards, same, clipped)
        table = [f'{device}: {", ".join(map(number, row))}' for device, row in zip(devices, weights)]
        return _lines(f'{where}: {fault}', remedy, *([ALONE, ''] if alone else []),
                      'Weight of each row in the update of each device; 1 is right:', *table)
    if random:
        return _lines('NOT CHECKED: the step draws random numbers, such as npx.dropout, and k devices draw others than '
                      'one; or it keeps values that make does not return',
                      'for the check, leave random numbers out, or draw them for the whole batch before it is split',
                      'Repeated with another seed, one device computes something else as well.')
    if scaling := explain_scaling(several, found, shards):
        return _lines(f'{where}: {scaling[0]}', scaling[1])
    return [f'{where}. The cause is unknown: no weights of the rows explain the update. Gradients may be clipped, rows '
            'may influence each other, labels may belong to other rows, or the optimizer is not SGD.']


def _lines(fault: str, remedy: str, *evidence: str) -> list[str]:
    return [f'{fault}.', f'Do: {remedy}.', *(['', *evidence] if evidence else [])]


def _is_right(several: Training, found: Comparison, start: list) -> bool:
    """Return whether the batches are right if Trainers update elsewhere, which some cannot."""
    try:
        again = compare(several, found.batches, start)
    except Exception:
        return False
    return not again.wrong and not again.skipped


def _is_right_alone(several: Training, found: Comparison) -> bool:
    """Return whether the last batch is right in a new training that starts with it, from the same parameters."""
    try:
        alone = compare(several, found.batches[-1:], found.before)
    except UserWarning:  # from Gluon's Trainer, if a gradient was never written
        return False
    return len(alone.unchanged) < alone.trained and not alone.wrong


def _is_random(several: Training, found: Comparison) -> bool:
    """Return whether the last batch changes the parameters on one device otherwise with another seed."""
    one = several.on_one_device()
    first, second = (updates(replace(one, seed=seed), found, found.batches) for seed in (0, 1))
    return bool(abs(first - second).max() > RESIDUAL['float64'] * abs(first).max())
