"""ResNet-18 for small images, the network of the concise chapter (D2L 13.6.1)."""
from collections.abc import Callable

from ..mxnet_setup.compat import HybridBlock, add, gluon, npx
from ..mxnet_setup.instructions import amx_obstacle
from .precision import Cast, conv2d
from .side_by_side import GlobalAvgPool2D, SideBySideConv2D
from .static_shapes import StaticSequential

nn = gluon.nn


class Residual(HybridBlock):
    """Residual block: two 3x3 convolutions with batch norm, added to their input, relu(X + f(X)).

    Source: D2L 8.6.2, ``Residual``; this one can be hybridized. `use_1x1conv` adds a 1x1 convolution that gives the
    input the channels and the size of the output. `strides` applies to it and to the first convolution.
    `conv2d` makes the convolutions.
    """

    def __init__(self, num_channels: int, use_1x1conv: bool = False, strides: int = 1, dtype: str = 'float32',
                 conv2d: Callable = conv2d):
        super().__init__()
        self.conv1 = conv2d(num_channels, kernel_size=3, padding=1, strides=strides, dtype=dtype)
        self.bn1 = nn.BatchNorm()
        self.relu1 = nn.Activation('relu')
        self.conv2 = conv2d(num_channels, kernel_size=3, padding=1, dtype=dtype)
        self.bn2 = nn.BatchNorm()
        self.conv3 = None
        if use_1x1conv:
            self.conv3 = conv2d(num_channels, kernel_size=1, strides=strides, dtype=dtype)
        self.relu2 = nn.Activation('relu')

    def forward(self, X):
        """Compute (n, c, h, w) -> (n, num_channels, ceil(h / strides), ceil(w / strides)); does not block."""
        Y = self.relu1(self.bn1(self.conv1(X)))
        Y = self.bn2(self.conv2(Y))
        if self.conv3 is not None:
            X = self.conv3(X)
        return self.relu2(add(Y, X))


def resnet18(num_classes: int, dtype: str = 'float32') -> gluon.nn.HybridSequential:
    """Return a slightly modified ResNet-18, (n, c, h, w) -> (n, num_classes), which is not initialized.

    Source: D2L 13.6.1, ``resnet18``; this one can be hybridized, and must be if `dtype` (see `precision`) is not
    float32. Each device's batch norm uses its own rows, so k devices do not equal one; with `SyncBatchNorm` they do.
    """
    def resnet_block(num_channels, num_residuals, conv2d=conv2d, first_block=False):
        blk = nn.HybridSequential()
        for i in range(num_residuals):
            if i == 0 and not first_block:
                blk.add(Residual(num_channels, use_1x1conv=True, strides=2, dtype=dtype, conv2d=conv2d))
            else:
                blk.add(Residual(num_channels, dtype=dtype, conv2d=conv2d))
        return blk

    on_amx = dtype == 'bfloat16' and not amx_obstacle()
    net = StaticSequential()
    if dtype != 'float32':
        net.add(Cast(dtype))
    # This model uses a smaller convolution kernel, stride and padding than the original, and no max pooling
    net.add(conv2d(64, kernel_size=3, strides=1, padding=1, dtype=dtype),  # (n, 1, 28, 28) -> (n, 64, 28, 28)
            nn.BatchNorm(), nn.Activation('relu'))
    net.add(resnet_block(64, 2, first_block=True),               # (n, 64, 28, 28)
            resnet_block(128, 2),                                # (n, 128, 14, 14)
            resnet_block(256, 2),                                # (n, 256, 7, 7)
            resnet_block(512, 2, SideBySideConv2D if on_amx else conv2d))  # (n, 512, 4, 4)
    net.add(GlobalAvgPool2D() if on_amx else nn.GlobalAvgPool2D())         # (n, 512, 1, 1)
    if dtype != 'float32':
        net.add(Cast('float32'))
    net.add(nn.Dense(num_classes))                               # (n, num_classes)
    return net


def in_float32(net: gluon.Block) -> gluon.Block:
    """Return a ResNet-18 of lower precision as a copy that computes in float32, and others as they are; blocks."""
    if not any(isinstance(layer, Cast) for layer in getattr(net, '_children', {}).values()):
        return net
    npx.waitall()  # under ``hybridize(static_shape=True)``, backward passes write statistics without the engine
    arrays = [param.list_data()[0] for param in net.collect_params().values()]  # of float32
    net = resnet18(arrays[-1].size)  # the bias of the last layer
    for param, data in zip(net.collect_params().values(), arrays, strict=True):
        param._load_init(data, [data.ctx])
    return net
