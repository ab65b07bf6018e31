"""Compare hybridized networks with the same networks operator by operator, on one device.

Gluon's `hybridize` runs what `forward` did when it was traced, and has mistakes of its own.
"""
from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ...base.program import reason
from ...mxnet_setup.compat import gluon
from .contents import Networks, find, is_gluons
from .step_comparison import Comparison, compare
from .user_step import Training

MAX_LAYERS = 50  # that may be tried
FROZEN = ('WRONG on one device as well: MXNet computes no gradient for the bias of a dense layer with a frozen weight '
          '({}).',
          "Do: to freeze the weight, set weight.lr_mult = 0 instead of weight.grad_req = 'null'.")
PRELU = ('the gradient of the slope of PReLU ({}) is wrong',
         'write the layer as F.relu(x) - alpha * F.relu(-x), or hybridize the other layers only')
STATIC_SHAPE = ('static_shape=True makes the gradients of {} wrong, as of parameters that occur twice in some losses, '
                'in a penalty or a second call, and once in others',
                'call net.hybridize(static_alloc=True) without static_shape')
IMPURE = ('{} differ from those with hybridize(False), because {} is not pure: it uses what it read when traced{}',
          'let forward depend on its arguments only, such as an array for what changes; or hybridize other layers only')
EFFECT = ('{} is {}, and {} with hybridize(False), because forward runs while it is traced, not in each call',
          'change attributes in the step instead, or hybridize the other layers only')
PRINTS = 'forward prints only while it is traced, because the network is hybridized.'


def check_frozen(one: Training, batch: Sequence) -> list[str]:
    """Return fault and remedy, one line each, if MXNet computes no gradient of a bias on one device."""
    if not _biases(one):
        return []
    one = replace(one, zero_gradients=True, dtype=None)  # in float64, MXNet computes it
    one.step(batch)
    names = [name for name, bias in _biases(one) if not any(g.asnumpy().any() for g in bias.list_grad())]
    return [FROZEN[0].format(_list(names)), FROZEN[1]] if names else []


def _biases(one: Training) -> list:
    return [(f'{name}.bias'.strip('.'), layer.bias) for name, layer in find(one.state, gluon.nn.Dense)
            if layer.weight.grad_req == 'null' and layer.bias is not None and layer.bias.grad_req != 'null']


def check_hybridized(one: Training, batches: Sequence) -> tuple[list[str], list[str]]:
    """Return fault and remedy, one line each, of a hybridized network on one device, and notes."""
    if not any(block._active for _, block in find(one.state, gluon.HybridBlock)):
        return [], []
    hybridized, plain = Networks(lambda blocks: None), Networks(_switch_off)
    one, other = replace(one, networks=hybridized), replace(one, networks=plain)
    # Static memory is wrong only in another batch of the same shape
    whole = [batch for batch in batches if len(batch[0]) == len(batches[0][0])]
    try:
        found = compare(one, [*whole, *whole, *batches[1:2]], reference=other)
        differing, changed = hybridized.differing(plain), plain.changed()
        notes = [PRINTS] if _num_lines(one, batches[0]) < _num_lines(other, batches[0]) else []
    except Exception as error:
        return [], [f'the network is not compared with hybridize(False), because of {type(error).__name__} '
                    f'({reason(error)})']
    if found.wrong:
        fault, remedy = _explain(one, other, found, [*differing] or changed)
    elif differing:
        (name, values), *_ = differing.items()
        fault, remedy = EFFECT[0].format(name, *values), EFFECT[1]
    else:
        return [], notes
    return [f'WRONG if hybridized: {fault}.', f'Do: {remedy}.'], notes


def _explain(one: Training, other: Training, found: Comparison, changing: list[str]) -> tuple[str, str]:
    """Return fault and remedy for a network whose parameters differ from those of `other`, without `hybridize`."""
    names, again = _list([found.rows[i][0] for i in found.wrong]), replace(one)
    arrays = [id(array) for _, array in again.params()[0]]
    slopes = {id(array) for _, layer in find(again.state, gluon.nn.PReLU) for array in layer.alpha.list_data()}
    if {arrays[i] for i in found.wrong} <= slopes:
        return PRELU[0].format(names), PRELU[1]

    def is_wrong(change: Callable) -> bool:
        return bool(compare(replace(one, networks=change), found.batches, reference=other).wrong)
    if not is_wrong(_leave_out_static_shape):
        return STATIC_SHAPE[0].format(names), STATIC_SHAPE[1]
    layers = [pair for pair in find(again.state, gluon.HybridBlock) if pair[1]._active][:MAX_LAYERS]
    impure = ['a forward', *(
        f'the forward of {name or "the network"} ({type(layer).__name__})' for i, (name, layer) in enumerate(layers)
        if not is_gluons(layer) and is_wrong(partial(_hybridize_only, i)))]
    such_as = f', such as {_list(changing)}' if changing else ''
    return IMPURE[0].format(names, impure[-1], such_as), IMPURE[1]  # the last layer is the innermost


def _switch_off(blocks: list) -> None:
    for _, block in blocks:
        block.hybridize(False)


def _hybridize_only(i: int, blocks: list) -> None:
    _switch_off(blocks)
    blocks[i][1].hybridize()


def _leave_out_static_shape(blocks: list) -> None:
    for _, block in blocks:
        block._flags = [(name, value) for name, value in block._flags if name != 'static_shape']
        block._clear_cached_op()


def _num_lines(training: Training, batch: Sequence) -> int:
    """Return how many lines a second step prints."""
    training = replace(training)
    training.step(batch)
    with contextlib.redirect_stdout(io.StringIO()) as text:
        training.step(batch)
    return text.getvalue().count('\n')


def _list(names: list[str]) -> str:
    return ', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else '')
