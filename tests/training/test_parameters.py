"""Tests of the parameters of a network: which they are, and whether they are finite."""
import contextlib
import warnings

import numpy
import pytest
from epochs import train
from equals_one import sequential

from gluon_mgpu.base.program import InputError
from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.checkpoints.checkpoint_callback import CheckpointCallback
from gluon_mgpu.mxnet_setup.compat import gluon, init, np
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.training.epoch import DivergenceError
from gluon_mgpu.training.parameters import parameters_by_name
from gluon_mgpu.training.run import Run


@pytest.mark.parametrize('net', [
    lambda: [[np.array([1.0]), np.array([1.0])], [np.array([1.0]), np.array([numpy.nan])]],
    lambda: [[np.array([1.0]), np.array([numpy.inf])]],
    lambda: dense(numpy.inf)], ids=['second device', 'one device', 'block'])
def test_a_parameter_that_is_not_finite_ends_the_run(net):
    """relu(NaN) is 0, so the loss may stay finite."""
    run = Run(num_epochs=2, quiet=True)
    with pytest.raises(DivergenceError, match=r'(parameter 1|weight) is no longer finite after epoch 1: use a '
                                              'smaller learning rate'):
        train(run, net=net())
    assert run.history == []


def dense(value):
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize(init.Constant(value))
    return net


@pytest.mark.parametrize('other, differs', [(1.0005, False), (1.01, True)])
def test_copies_that_differ_by_more_than_rounding_end_the_run(other, differs):
    """Devices may sum in another order."""
    run = Run(num_epochs=1, quiet=True)
    with pytest.raises(InputError, match='^parameter 0 differs') if differs else contextlib.nullcontext():
        train(run, net=[[np.array([1.0])], [np.array([other])]])


def test_the_names_of_a_network_in_sync_batch_norm():
    """The same, so that a checkpoint of one can be loaded into the other."""
    net = dense(1)
    assert parameters_by_name(SyncBatchNorm(net)) == parameters_by_name(net) == {'weight': net.weight, 'bias': net.bias}


def test_an_infinite_constant_does_not_end_the_run(tmp_path):
    """Such as that of a mask. A statistic of batch norm would."""
    net = sequential(gluon.nn.BatchNorm(in_channels=1), dense(1))
    net.initialize()
    net[1].bias.grad_req = 'null'
    net[1].bias.set_data(np.array([-numpy.inf]))
    run = Run(num_epochs=1, quiet=True, callbacks=[CheckpointCallback(tmp_path)])
    assert not run.complete
    assert train(run, net=net).complete
    net[0].running_mean.set_data(np.array([numpy.inf]))
    with pytest.raises(DivergenceError, match='0.running_mean is no longer finite'):
        train(Run(num_epochs=1, quiet=True), net=net)


def test_what_is_no_network_is_refused_before_training():
    with pytest.raises(ValueError, match='^int: expected a Gluon network, a list of arrays, or a list of such lists'):
        next(Run(1, quiet=True).epochs(5))


class Hidden(gluon.Block):
    """Network with layers and parameters that Gluon does not register, because they are in lists."""

    def __init__(self):
        super().__init__()
        self.first = gluon.nn.Dense(1, in_units=1)
        self.layers = [self.first, {'second': gluon.nn.Dense(1, in_units=1)}, gluon.nn.Activation('relu')]
        self.scale = [gluon.Parameter('scale', shape=(1,))]
        self.known = [self.first, (self.first.weight,)]


def test_unregistered_parameters_cause_a_warning(devices, tmp_path):
    net = gluon.nn.Sequential()
    net.add(Hidden())
    net.initialize(ctx=devices)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        checkpoint.save(tmp_path / 'a', net)
    lines = [str(warning.message) for warning in caught if warning.filename == __file__]
    assert len(lines) == 2 and lines[0].startswith('Hidden.layers holds parameters that are not registered')
    assert lines[1].startswith('Hidden.scale holds')
