"""Operators of a graph."""
import numpy

from gluon_mgpu.networks.graph_operators import Operator


def test_the_settings_of_an_operator():
    """As MXNet of each version, and other front ends, write them."""
    texts = {'a': 'false', 'b': 'True', 'c': '(2L, 2L)', 'd': '-inf', 'e': 'None', 'f': '()', 'g': 'same', 'h': '1e-3'}
    assert Operator({'op': 'x', 'attrs': texts}, [], {}).settings == {
        'a': False, 'b': True, 'c': (2, 2), 'd': -numpy.inf, 'g': 'same', 'h': 0.001}
