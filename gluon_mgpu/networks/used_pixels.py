"""The part of an image that a network looks at.

A convolution or pooling without padding leaves out what fills no whole window. LeNet's second pooling takes
2x2 windows of 9x9 values: the ninth row and column go nowhere, and neither do the pixels that only they look
at, the last two rows and columns of the image. Cut off beforehand, they save a fifth of the second convolution.
"""
from __future__ import annotations

import ast
import json


def used_size(graph, image: str, size: tuple) -> tuple:
    """How many rows and columns of its images a network needs, counted from the first.

    Parameters
    ----------
    graph : mx.sym.Symbol
        The network.
    image : str
        The name of the variable that stands for the images.
    size : (int, int)
        Their rows and columns.

    Returns
    -------
    (int, int)
        With images cut to that, every result and every gradient is the same. `size` itself where nothing
        can be cut, or nothing is known.
    """
    windows = _windows(json.loads(graph.tojson())['nodes'], image)
    return tuple(_used(n, [window[axis] for window in windows]) for axis, n in enumerate(size))


def _used(size: int, windows: list) -> int:
    """Along one axis: how much of `size` is read through (extent, stride) windows, one after the other."""
    used = size
    for extent, stride in windows:  # there: how many values come out at the end
        used = (used - extent) // stride + 1
    for extent, stride in reversed(windows):  # and back: what they are computed from
        used = (used - 1) * stride + extent
    return used if 0 < used <= size else size


def _windows(nodes: list, image: str) -> list:
    """The windows through which the image is looked at, as far as nothing else does: ((extent, stride), ...)."""
    windows: list[list] = []
    index = next((i for i, node in enumerate(nodes) if node['name'] == image), None)
    while True:
        readers = [i for i, node in enumerate(nodes) for source, *_ in node['inputs'] if source == index]
        if len(readers) != 1 or nodes[readers[0]]['inputs'][0][0] != index:
            return windows
        index = readers[0]
        node = nodes[index]
        if node['op'] == 'Activation':  # value by value
            continue
        attrs = node.get('attrs', {})
        if node['op'] not in ('Convolution', 'Pooling') or not _is_plain(attrs):
            return windows
        kernel = ast.literal_eval(attrs['kernel'])
        stride, dilate = (ast.literal_eval(attrs.get(name, '()')) or (1, 1) for name in ('stride', 'dilate'))
        windows.append([((k - 1) * d + 1, s) for k, s, d in zip(kernel, stride, dilate)])


def _is_plain(attrs: dict) -> bool:
    """Whether windows start at the first pixel, end within the image and lie in rows and columns."""
    expected = {'pad': ('()', '(0, 0)'), 'global_pool': ('False',), 'pooling_convention': ('valid',),
                'layout': ('None', 'NCHW')}
    return (all(attrs.get(name, values[0]) in values for name, values in expected.items())
            and len(ast.literal_eval(attrs.get('kernel', '()'))) == 2)
