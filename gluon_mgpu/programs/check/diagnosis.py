"""Find out what is wrong with a training step on several devices."""
from collections.abc import Sequence
from dataclasses import replace

import numpy

from ...base.text import counted
from .comparison import Comparison, compare_with_one, largest, updates
from .user_training import Training
from .weights import PRECISION, RESIDUAL, explain, number, row_weights

FLOAT16 = 2e-3  # some times the rounding error of float16
START = ('the devices start with different parameters', 'draw the parameters once, and copy them to all devices')
COPIES = ('copies without gradients, such as a moving average, a target network or momentum, differ from those of one '
          'device on', 'update them on all devices after every batch, including devices without rows; what each device '
          'keeps for itself, leave out of what make returns')
NOT_FINITE = 'parameters become NaN or infinite', 'look for NaN in the batches, and for a division by 0'
STALE = ('the gradient of the batch before is added', 'set the gradients of devices without rows, and of layers '
         "that a batch does not use, to 0 before the sum: prepare_idle_devices(net, X, devices), or param.grad[:] = 0; "
         "with grad_req 'add', those of all devices")
OPTIMIZER = ("the optimizer's settings or state differ from those of one device",
             'give it the same settings on any number of devices, and update every device after every batch. With '
             'update_on_kvstore=False, each device calls it, and an optimizer that counts its calls or draws random '
             'numbers drifts apart')
ROUNDING = ['NOT CHECKED: the differences may be rounding errors, of casts, or of gradients near 0 that Adam enlarges.',
            'Do: check the step without casts, so that it computes in float64, or with plain SGD.']
RANDOM = ['NOT CHECKED: the step draws random numbers, such as npx.dropout, and k devices draw others than one; or it '
          'keeps values that make does not return.',
          'Do: for the check, leave random numbers out, or draw them for the whole batch before it is split.', '',
          'Repeated with another seed, one device computes something else as well.']
UNKNOWN = ('The cause is unknown: no weights of the rows explain the update. Each device may divide by a count of its '
           'own rows, clip its own gradient, use rows or labels of others, or round after its sum.')


def diagnose(several: Training, batches: Sequence, devices: list[str]) -> list[str]:
    """Return fault, remedy and evidence, one line each, for a step whose parameters differ from one device's."""
    start, *others = several.values()
    if any(largest(start, other).any() for other in others) and _is_right(several, batches[:1], start):
        return described('WRONG: ', START, 'From the same parameters, k devices equal one after batch 1.')
    with_optimizer, several = several, replace(several, plain_sgd=True)
    try:
        found = compare_with_one(several, batches, start)
    except Exception:  # the step needs its own optimizer
        several = with_optimizer
        found = compare_with_one(several, batches, start)
    if not found.wrong:
        found = compare_with_one(with_optimizer, batches, start)
        if with_optimizer.dtype is None and not any(found.rows[i][2] for i in found.wrong):
            return ROUNDING
        return described('WRONG: ', OPTIMIZER, 'With plain SGD instead, k devices equal one.')
    where = (f'WRONG in {len(found.wrong)} of {len(found.rows)} parameters after batch {len(found.batches)}, of '
             f'{counted(len(found.batches[-1][0]), "row")}')
    copies = []
    if found.wrong[-1] >= found.trained:
        on = ', '.join(devices[i] for i in found.wrong_on)
        copies = described(f'{where}: ', (f'{COPIES[0]} {on}', COPIES[1]))
    if found.wrong[0] >= found.trained:
        return copies
    found = found._replace(wrong=[i for i in found.wrong if i < found.trained])
    if not numpy.isfinite([found.rows[i][1:] for i in found.wrong]).all():
        return described(f'{where}: ', NOT_FINITE)
    if _is_right(replace(several, zero_gradients=True), found.batches, start):
        return described(f'{where}: ', STALE,
                         'If all gradients are set to zero before each step, this does not happen.')
    return _batch(several, found, where, devices, copies)


def _batch(several: Training, found: Comparison, where: str, devices: list[str], copies: list[str]) -> list[str]:
    """Return the lines for a step whose last batch alone is wrong."""
    weights, precision = row_weights(several, found), PRECISION[several.dtype]
    all_once = weights is not None and (weights == 1).all()
    if copies and all_once:
        return copies
    if weights is None or all_once:
        if _is_random(several, found):
            return RANDOM
        if max(found.rows[i][1] for i in found.wrong) < FLOAT16:
            return ROUNDING
    if weights is None:
        return [f'{where}. {UNKNOWN}']
    table = [f'{device}: {", ".join(map(number, row))}' for device, row in zip(devices, weights)]
    return described(f'{where}: ', explain(weights, devices, precision),
                     'Weight of each row in the update of each device; 1 is right:', *table)


def described(where: str, fault_and_remedy: tuple, *evidence: str) -> list[str]:
    """Return fault, remedy and evidence as lines."""
    fault, remedy = fault_and_remedy
    return [f'{where}{fault}.', f'Do: {remedy}.', *(['', *evidence] if evidence else [])]


def _is_right(several: Training, batches: Sequence, start: list) -> bool:
    """Return whether k devices equal one from the values `start`; the changed step may fail."""
    try:
        found = compare_with_one(several, batches, start)
    except Exception:
        return False
    return not found.wrong and not found.skipped


def _is_random(several: Training, found: Comparison) -> bool:
    """Return whether the last batch changes the parameters on one device otherwise with another seed."""
    first, second = (updates(replace(several.on_one_device(), seed=seed), found, found.batches) for seed in (0, 1))
    return bool(abs(first - second).max() > RESIDUAL['float64'] * abs(first).max())
