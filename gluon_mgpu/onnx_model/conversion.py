"""Conversion of LeNet and ResNet-18 to ONNX operators. Needs onnx.

Operator set 13 and IR version 8, which onnxruntime has supported since 2021.
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
KNOWN = "only LeNet's list of parameters and resnet18(num_classes) can be exported"

nn = gluon.nn


def lenet_model(arrays: dict[str, numpy.ndarray]) -> onnx.ModelProto:
    """Convert the LeNet of `scratch.lenet`: images (batch, 1, 28, 28) to scores (batch, 10).

    `arrays` has the names and shapes of `LENET`.
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
    """Convert a float32 network of ResNet-18's layers: images (batch, channels, height, width) to scores.

    The network begins with a convolution and ends with global average pooling and a dense layer; anything else raises
    ValueError. `arrays` has the values of its parameters by their names in `net`.
    """
    graph = _GluonGraph(net, arrays)
    graph.add_layer(net, INPUT)
    operators = [node.op_type for node in graph.nodes]
    if operators[:1] != ['Conv'] or operators[-3:] != HEAD or any(operators.count(name) > 1 for name in HEAD):
        raise ValueError('the network is not a chain of convolutions followed by global average pooling and a Dense '
                         f'layer; {KNOWN}')
    first, last = (arrays[graph.nodes[i].input[1]] for i in (0, -1))  # the weights
    return graph.model('ResNet-18', (first.shape[1], 'height', 'width'), len(last))


class _Graph:
    """An ONNX graph under construction, and the arrays that its operators use by name."""

    def __init__(self, arrays: dict[str, numpy.ndarray]):
        self.arrays = arrays
        self.nodes: list[onnx.NodeProto] = []

    def add(self, operator: str, *inputs: str, **attributes) -> str:
        """Append an operator on results and arrays given by name; return the name of its result."""
        name = f'{operator}_{len(self.nodes)}'
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def model(self, name: str, image: tuple, num_classes: int) -> onnx.ModelProto:
        """Return the finished model, with the last operator's result as the scores."""
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


class _GluonGraph(_Graph):
    """A graph of Gluon layers. Each method takes the name of a layer's input and returns that of its output."""

    def __init__(self, net: gluon.HybridBlock, arrays: dict[str, numpy.ndarray]):
        super().__init__(arrays)
        self.names = {id(param): name for name, param in by_name(net).items()}

    def add_layer(self, layer: gluon.Block, X: str) -> str:
        known: dict[type, Callable[[Any, str], str]] = {
            nn.HybridSequential: self._sequential, Residual: self._residual, nn.Conv2D: self._convolution,
            nn.BatchNorm: self._batch_norm, nn.Activation: self._activation,
            nn.GlobalAvgPool2D: lambda _, X: self.add('GlobalAveragePool', X), nn.Dense: self._dense}
        if type(layer) not in known:
            raise ValueError(f'{type(layer).__name__} is not supported; {KNOWN}')
        return known[type(layer)](layer, X)

    def _sequential(self, layers, X: str) -> str:
        for layer in layers:
            X = self.add_layer(layer, X)
        return X

    def _residual(self, block, X: str) -> str:
        Y = self._sequential([block.conv1, block.bn1, block.relu1, block.conv2, block.bn2], X)
        if block.conv3 is not None:
            X = self.add_layer(block.conv3, X)
        return self.add_layer(block.relu2, self.add('Add', Y, X))

    def _convolution(self, layer, X: str) -> str:
        kwargs = layer._kwargs
        _require(kwargs['num_group'] == 1 and layer.act is None, layer, 'with one group and without activation')
        return self.add('Conv', X, *self._arrays(layer.weight, layer.bias), kernel_shape=kwargs['kernel'],
                        strides=kwargs['stride'], pads=kwargs['pad'] * 2, dilations=kwargs['dilate'])

    def _batch_norm(self, layer, X: str) -> str:
        kwargs = layer._kwargs
        _require(not kwargs['fix_gamma'] and kwargs['axis'] == 1, layer, 'over axis 1 with a trained scale')
        arrays = self._arrays(layer.gamma, layer.beta, layer.running_mean, layer.running_var)
        return self.add('BatchNormalization', X, *arrays, epsilon=kwargs['eps'])

    def _activation(self, layer, X: str) -> str:
        _require(layer._act_type == 'relu', layer, 'with relu')
        return self.add('Relu', X)

    def _dense(self, layer, X: str) -> str:
        _require(layer._flatten and layer.act is None, layer, 'with flatten and without activation')
        return self.add('Gemm', self.add('Flatten', X), *self._arrays(layer.weight, layer.bias), transB=1)

    def _arrays(self, *params) -> list[str]:
        return [self.names[id(param)] for param in params if param is not None]


def _require(supported: bool, layer: gluon.Block, kind: str) -> None:
    if not supported:
        raise ValueError(f'{layer}: only {type(layer).__name__} layers {kind} can be exported')
