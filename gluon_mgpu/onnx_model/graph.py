"""A network's layers as ONNX operators: LeNet from its arrays, ResNet-18 from its Gluon layers. Needs onnx.

All operators are of ONNX's operator set 13, and the model of IR version 8, which onnxruntime reads since 2021.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import onnx
from onnx import helper, numpy_helper

from ..base.machine import versions
from ..mxnet_setup.compat import gluon
from ..networks.resnet import Residual
from ..training.parameters import by_name

OPSET, IR_VERSION = 13, 8
INPUT, OUTPUT = 'images', 'scores'
LENET = {'W1': (20, 1, 3, 3), 'b1': (20,), 'W2': (50, 20, 5, 5), 'b2': (50,), 'W3': (800, 128), 'b3': (128,),
         'W4': (128, 10), 'b4': (10,)}
HEAD = ['GlobalAveragePool', 'Flatten', 'Gemm']
KNOWN = "what can be: LeNet's list of parameters, and resnet18(num_classes)"

nn = gluon.nn


def lenet_model(arrays: dict[str, numpy.ndarray]) -> onnx.ModelProto:
    """The LeNet of `scratch.lenet`, line by line: images (batch, 1, 28, 28) to scores (batch, 10).

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        Of the names and shapes of `LENET`.
    """
    graph = _Graph(arrays)
    pooling = {'kernel_shape': (2, 2), 'strides': (2, 2)}
    h1_conv = graph.add('Conv', INPUT, 'W1', 'b1')
    h1 = graph.add('AveragePool', graph.add('Relu', h1_conv), **pooling)
    h2_conv = graph.add('Conv', h1, 'W2', 'b2')
    h2 = graph.add('AveragePool', graph.add('Relu', h2_conv), **pooling)
    h3_linear = graph.add('Gemm', graph.add('Flatten', h2), 'W3', 'b3')
    h3 = graph.add('Relu', h3_linear)
    graph.add('Gemm', h3, 'W4', 'b4')
    return graph.model('LeNet', (1, 28, 28), 10)


def gluon_model(net: gluon.HybridBlock, arrays: dict[str, numpy.ndarray]) -> onnx.ModelProto:
    """A Gluon network of the layers that ResNet-18 has, in float32: images (batch, channels, height, width) to scores.

    Parameters
    ----------
    net : gluon.HybridSequential
        It begins with a convolution and ends with global average pooling and a dense layer.
    arrays : dict of str to numpy.ndarray
        The values of its parameters, by their names in `net`.

    Raises
    ------
    ValueError
        If it has another layer, or another order.
    """
    graph = _Graph(arrays)
    layers = _Layers(graph, {id(param): name for name, param in by_name(net).items()})
    layers.add(net, INPUT)
    operators = [node.op_type for node in graph.nodes]
    if operators[:1] != ['Conv'] or operators[-3:] != HEAD or any(operators.count(name) > 1 for name in HEAD):
        raise ValueError('the network is not one convolution after another, then global average pooling and a Dense '
                         f'layer, as ResNet-18 is: {KNOWN}')
    first, last = (arrays[graph.nodes[i].input[1]] for i in (0, -1))  # the weights
    return graph.model('ResNet-18', (first.shape[1], 'height', 'width'), len(last))


class _Graph:
    """An ONNX graph that grows by an operator at a time, with the arrays that it may use by name."""

    def __init__(self, arrays: dict[str, numpy.ndarray]):
        self.arrays = arrays
        self.nodes: list[onnx.NodeProto] = []

    def add(self, operator: str, *inputs: str, **attributes) -> str:
        """Add an operator that takes results and arrays by name; returns the name of its result."""
        name = f'{operator}_{len(self.nodes)}'
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def model(self, name: str, image: tuple, num_classes: int) -> onnx.ModelProto:
        """Return the model, whose last operator gives the scores. Its first axes are of any length, ``batch``."""
        self.nodes[-1].output[0] = OUTPUT
        float32 = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes, name, [helper.make_tensor_value_info(INPUT, float32, ('batch', *image))],
            [helper.make_tensor_value_info(OUTPUT, float32, ('batch', num_classes))],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items()])
        model = helper.make_model(graph, producer_name='gluon_mgpu', producer_version=versions()['gluon_mgpu'],
                                  opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model


class _Layers:
    """Adds Gluon layers to a graph. Each method takes the name of what goes into a layer and returns what comes out."""

    def __init__(self, graph: _Graph, names: dict[int, str]):
        self.graph = graph
        self.names = names  # of the parameters, by their identity

    def add(self, layer: gluon.Block, X: str) -> str:
        known: dict[type, Callable[[Any, str], str]] = {
            nn.HybridSequential: self._sequential, Residual: self._residual, nn.Conv2D: self._convolution,
            nn.BatchNorm: self._batch_norm, nn.Activation: self._activation,
            nn.GlobalAvgPool2D: self._global_average, nn.Dense: self._dense}
        if type(layer) not in known:
            raise ValueError(f'{type(layer).__name__}: a layer that cannot be exported; {KNOWN}')
        return known[type(layer)](layer, X)

    def _sequential(self, layers, X: str) -> str:
        for layer in layers:
            X = self.add(layer, X)
        return X

    def _residual(self, block, X: str) -> str:
        Y = self.add(block.relu1, self.add(block.bn1, self.add(block.conv1, X)))
        Y = self.add(block.bn2, self.add(block.conv2, Y))
        if block.conv3 is not None:
            X = self.add(block.conv3, X)
        return self.add(block.relu2, self.graph.add('Add', Y, X))

    def _convolution(self, layer, X: str) -> str:
        given = layer._kwargs
        if given['num_group'] != 1 or layer.act is not None:
            raise ValueError(f'{layer}: a convolution over all channels, without activation expected')
        return self.graph.add('Conv', X, *self._arrays(layer.weight, layer.bias), kernel_shape=given['kernel'],
                              strides=given['stride'], pads=given['pad'] * 2, dilations=given['dilate'])

    def _batch_norm(self, layer, X: str) -> str:
        given = layer._kwargs
        if given['fix_gamma'] or given['axis'] != 1:
            raise ValueError(f'{layer}: batch norm over channels with a scale of its own expected')
        arrays = self._arrays(layer.gamma, layer.beta, layer.running_mean, layer.running_var)
        return self.graph.add('BatchNormalization', X, *arrays, epsilon=given['eps'])

    def _activation(self, layer, X: str) -> str:
        if layer._act_type != 'relu':
            raise ValueError(f'{layer}: only relu can be exported')
        return self.graph.add('Relu', X)

    def _global_average(self, layer, X: str) -> str:
        return self.graph.add('GlobalAveragePool', X)

    def _dense(self, layer, X: str) -> str:
        if layer.act is not None:
            raise ValueError(f'{layer}: a Dense layer without activation expected')
        X = self.graph.add('Flatten', X)
        return self.graph.add('Gemm', X, *self._arrays(layer.weight, layer.bias), transB=1)

    def _arrays(self, *params) -> list[str]:
        return [self.names[id(param)] for param in params if param is not None]
