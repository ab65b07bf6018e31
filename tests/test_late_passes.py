"""Under static shapes, backward passes write batch norm's statistics without MXNet's engine. What reads them waits."""
import onnx
import pytest
from bfloat16 import needs_bfloat16
from equals_one import sequential

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, np, npx
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.networks.static_shapes import StaticSequential
from gluon_mgpu.parallel.step import prepare_idle_devices
from gluon_mgpu.programs.onnx.writing import to_onnx
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus

nn = gluon.nn
STATIC = {'static_alloc': True, 'static_shape': True}
MEAN = 10


@pytest.fixture(params=[nn.HybridSequential, StaticSequential], ids=['of Gluon', 'ours'])
def net(request, devices):
    """A network whose batch norm takes over the mean of each batch, now 0."""
    net = sequential(nn.Conv2D(1, 1, in_channels=1), nn.BatchNorm(momentum=0, in_channels=1), nn.GlobalAvgPool2D(),
                     nn.Dense(2, in_units=1), kind=request.param)
    net.initialize(init.One(), ctx=devices)
    net[3].weight.set_data(np.array([[-1], [1]]))  # class 0 if the image is below the mean
    net.hybridize(**STATIC)
    start_pass(net, devices, 0)
    npx.waitall()
    return net


def start_pass(net, devices, mean=MEAN):
    """Start a forward and a backward pass on each device, of which the second waits for 0.3 s and writes this mean."""
    for device in devices:
        with autograd.record():
            l = net(np.full((2, 1, 2, 2), mean, dtype='float32', ctx=device))[:, 1].sum() * late(device)
        l.backward()


def late(device):
    """Return 1 when the device has run operators that take 0.3 s."""
    one = np.eye(1200, ctx=device)
    for _ in range(6):  # few operators, because each holds some scratch memory, for which others would wait
        one = np.dot(one, one)
    return one[0, 0]


def other_operator(net):
    """Return a network with the same layers as another operator, which MXNet's engine does not order after the pass."""
    other = sequential(*net)
    other.hybridize(**STATIC)
    return other


def means(net):
    """Return the running mean on each device, as it is now."""
    return [array.item() for array in net[1].running_mean.list_data()]


def test_without_a_wait(net, devices):
    """If this fails, the other tests test nothing."""
    start_pass(net, devices)
    if devices[0].device_type == 'cpu':  # a GPU may be done already
        assert means(net) == [0] * len(devices)
    npx.waitall()
    assert means(net) == [MEAN] * len(devices)


def test_evaluation(net, devices):
    other, data = other_operator(net), [(np.full((4, 1, 2, 2), MEAN / 2), np.zeros(4))]
    assert evaluate_accuracy_gpus(other, data) == 0  # and now the operator exists
    start_pass(net, devices)
    assert evaluate_accuracy_gpus(other, data) == 1


def test_saving(net, devices, tmp_path):
    start_pass(net, devices)
    checkpoint.save(tmp_path / 'a', net)
    assert [array.item() for array in checkpoint.read(tmp_path / 'a')[1]['parameters/1.running_mean']] == [MEAN]


def test_broadcast_parameters(net, devices):
    """Rank 0 reads the parameters of its only device."""
    workers, kept = object.__new__(HorovodWorkers), []
    workers.check_equal = lambda facts: None
    workers.on_rank_0 = lambda function: kept.extend(function()) or kept
    start_pass(net, devices)
    workers.broadcast_parameters(net)
    mean, = (array for name, array in zip(net.collect_params(), kept) if 'running_mean' in name)
    assert mean == MEAN


def test_devices_without_rows(net, devices):
    """They get the statistics of the first device."""
    start_pass(net, devices[:1])
    prepare_idle_devices(net, np.ones((1, 1, 2, 2)), devices)
    npx.waitall()
    assert means(net) == [MEAN] * len(devices)


def arrays_of(path):
    """Return the parameters of a model by name."""
    return {array.name: onnx.numpy_helper.to_array(array) for array in onnx.load(path).graph.initializer}


def test_export(net, devices, tmp_path):
    other, X = other_operator(net), np.full((2, 1, 2, 2), 3.0)
    for mean in (0, MEAN, 0):  # first, the operator is created
        npx.waitall()
        start_pass(net, devices, mean)
        to_onnx(other, tmp_path / 'a.onnx', X, log=lambda line: None)
        assert arrays_of(tmp_path / 'a.onnx')['1.running_mean'] == mean


@pytest.mark.slow
@needs_bfloat16
def test_export_of_lower_precision(devices, tmp_path):
    """Its parameters are copied into a network in float32."""
    net = resnet18(10, 'bfloat16')
    net.initialize(init.Normal(0.1), ctx=devices)
    net.hybridize(**STATIC)
    X = np.random.uniform(size=(4, 1, 12, 12), ctx=devices[0])
    for _ in range(2):
        npx.waitall()
        with autograd.record():
            l = net(X).sum() * late(devices[0])
        l.backward()
    to_onnx(net, tmp_path / 'a.onnx', log=lambda line: None)
    assert (arrays_of(tmp_path / 'a.onnx')['1.running_mean'] == net[2].running_mean.list_data()[0].asnumpy()).all()
