"""Programs of workers, for comparison with one process: python programs.py NAME FOLDER, or 'EQUAL' or 'REFUSED'.

Each gets `Workers`, and many return arrays by name. In one process, they train on the joined batches.
"""
import contextlib
import sys
import time

import numpy
from trainers import trainable

from gluon_mgpu import concise
from gluon_mgpu.base.program import InputError
from gluon_mgpu.data.shards import shard_rows
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, mx, np
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus
from gluon_mgpu.training.run import Run

nn = gluon.nn
ROWS = 10  # of a batch, over all workers


def data(num_batches=5, columns=6):
    """Return batches of numbers in float64."""
    rng = numpy.random.default_rng(7)
    return [(rng.normal(size=(ROWS, columns)), rng.normal(size=(ROWS, 1))) for _ in range(num_batches)]


def of_worker(workers, *arrays):
    """Return this worker's rows of arrays."""
    rows = shard_rows(len(arrays[0]), *workers.shard)
    return [np.array(array[rows], dtype='float64') for array in arrays]


def dense(workers, num_layers=3, units=6, frozen=()):
    """Return a network of equal layers with values that differ between workers, some layers without training."""
    net = nn.HybridSequential()
    for _ in range(num_layers):
        net.add(nn.Dense(units, in_units=units, activation='tanh'))
    net.add(nn.Dense(1, in_units=units))
    net.initialize()
    net.cast('float64')
    rng = numpy.random.default_rng(workers.rank)
    for param in net.collect_params().values():
        param.set_data(np.array(rng.normal(scale=0.5, size=param.shape), dtype='float64'))
    for i in frozen:
        net[i].collect_params().setattr('grad_req', 'null')
    return net


def values(net):
    """Return all parameters of a network."""
    return {str(i): param.data().asnumpy() for i, param in enumerate(net.collect_params().values())}


def sgd(workers, net):
    return workers.trainer(trainable(net), 'sgd', {'learning_rate': 0.1})


def train(workers, net, trainer, batches=None):
    """Train a network on this worker's rows of some batches."""
    loss = gluon.loss.L2Loss()
    workers.broadcast_parameters(net)
    for X, y in batches or data():
        X, y = of_worker(workers, X, y)
        with autograd.record():
            l = loss(net(X), y)
        l.backward()
        trainer.step(ROWS)
    return values(net)


def other_names(workers, optimizer='adam', **settings):
    """Worker 1 numbers its layers from 1. Its tenth layer is named dense10, and that of worker 0 dense9."""
    if workers.rank:
        nn.Dense(1)
    net = dense(workers, 12)
    return train(workers, net, workers.trainer(trainable(net), optimizer, {'learning_rate': 0.01, **settings}))


def nadam(workers):
    """Its result depends on the order of the parameters."""
    return other_names(workers, 'nadam')


def momentum(workers):
    """With a gradient that is limited, and weight decay."""
    return other_names(workers, 'sgd', momentum=0.9, wd=0.01, clip_gradient=0.05)


def frozen_layer(workers):
    """Only worker 0 has the values of the pretrained layer. It is trained after two batches."""
    net = dense(workers, frozen=[1])
    trainer = workers.trainer(list(net.collect_params().values()), 'sgd', {'learning_rate': 0.1})
    train(workers, net, trainer)
    net.collect_params().setattr('grad_req', 'write')
    return train(workers, net, trainer)


def frozen_batch_norm(workers):
    """The statistics of a pretrained network, which only worker 0 has loaded."""
    net = dense(workers)
    net.add(nn.BatchNorm(in_channels=1, use_global_stats=True, prefix='norm_'))
    net[-1].initialize()
    net[-1].cast('float64')
    for name, value in (('mean', 0.3), ('var', 2)):
        net[-1].params[f'norm_running_{name}'].set_data(np.full(1, value + workers.rank, dtype='float64'))
    return train(workers, net, sgd(workers, net))


def data_loader(workers, batch_size=ROWS):
    """The chapter on a DataLoader of this worker's rows: shards of 5 rows, and of 2 and 1 rows of a last batch of 3."""
    rng = numpy.random.default_rng(3)
    images, labels = rng.normal(size=(3 * ROWS + 3, 4)).astype('float32'), rng.integers(0, 3, 3 * ROWS + 3)
    starts = range(0, len(images), ROWS)
    mine = [numpy.arange(len(images))[start:start + ROWS] for start in starts]
    mine = numpy.concatenate([rows[shard_rows(len(rows), *workers.shard)] for rows in mine])
    size = len(range(ROWS)[shard_rows(ROWS, *workers.shard)])
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(images[mine], labels[mine].astype('int32')), size)
    loader.shard = workers.shard
    net, run = nn.Dense(3, in_units=4), Run(2, quiet=True, workers=workers)
    concise.train(1, batch_size, 0.5, data=(loader, loader), net=net, run=run, devices=[workers.device or mx.cpu(0)],
                  Trainer=workers.trainer)
    return values(net)


def gan(workers):
    """Two networks and their Trainers, as in D2L 17.1. The batches of noise have another number of rows."""
    nets = dense(workers, 2), dense(workers, 1)
    D, G = [workers.trainer(trainable(net), 'adam', {'learning_rate': 0.02}) for net in nets]
    for net in nets:
        workers.broadcast_parameters(net)
    disc, gen = nets
    loss = gluon.loss.SigmoidBCELoss()
    for X, noise in data(columns=1):
        (X,), (Z,) = of_worker(workers, X), of_worker(workers, numpy.tile(noise[:7], 6))
        X = np.tile(X, (1, 6))
        with autograd.record():
            fake = np.tile(gen(Z), (1, 6))
            l = loss(disc(X), np.ones(len(X))).sum() + loss(disc(fake.detach()), np.zeros(len(Z))).sum()
        l.backward()
        D.step(ROWS)
        with autograd.record():
            l = loss(disc(np.tile(gen(Z), (1, 6))), np.ones(len(Z)))
        l.backward()
        G.step(7)
    return {f'{i}{name}': array for i, net in enumerate(nets) for name, array in values(net).items()}


class Batches:
    """Batches of this worker's rows, of which only some have a length."""

    def __init__(self, workers, num_batches, has_length=False):
        self.shard, self.batches = workers.shard, [of_worker(workers, *pair) for pair in data(num_batches)]
        self.length = num_batches if has_length else NotImplemented

    def __iter__(self):
        return iter(self.batches)

    def __length_hint__(self):
        return self.length


def train_with_run(workers, batches, num_epochs=2, evaluates=lambda workers: True, job=None, net=None, **options):
    """Train with a `Run`, and evaluate, possibly only on some workers."""
    net = net or dense(workers)
    trainer = sgd(job or workers, net)
    devices, loss = [mx.cpu(0)], gluon.loss.L2Loss()
    run = Run(num_epochs, quiet=True, workers=workers)
    for _ in run.epochs(net, trainer, **options):
        for X, y in run.batches(batches):
            run.record_losses(concise.train_batch(X, y, net, loss, trainer, devices, ROWS))
        if evaluates(workers):
            evaluate_accuracy_gpus(lambda X: net(X) > 0, batches, devices=devices, workers=workers)
        run.end_epoch(0)
    return values(net)


def unused_layers(workers, step=lambda trainer: trainer.step(ROWS, ignore_stale_grad=True), clip_norm=None):
    """Each worker uses a layer only if one of its rows needs it: in some batches all, one or none of them."""
    net = dense(workers)
    settings = {'learning_rate': 0.2, 'momentum': 0.9, 'wd': 0.1}
    trainer = workers.trainer(trainable(net), 'sgd', settings, clip_norm)
    workers.broadcast_parameters(net)
    for number, (X, y) in enumerate(data(8)):
        needs = numpy.zeros((ROWS, 1))
        needs[[slice(0), slice(9, 10), slice(2, 3), slice(3, 8)][number % 4]] = 1
        X, y, needs = of_worker(workers, X, y, needs)
        with autograd.record():
            h = net[0](X)
            if needs.sum() > 0:
                h = h + needs * net[1](X)
            l = gluon.loss.L2Loss()(net[3](net[2](h)), y)
        l.backward()
        step(trainer)
    return values(net)


def unused_layers_and_clipping(workers):
    return unused_layers(workers, clip_norm=0.05)


def unused_layers_in_two_calls(workers):
    def step(trainer):
        trainer.allreduce_grads()
        trainer.update(ROWS, ignore_stale_grad=True)
    return unused_layers(workers, step, clip_norm=0.05)


def without_block(workers):
    """Worker 1 writes its results later, when worker 0 has ended its program, and takes longer than an exchange may."""
    with HorovodWorkers() as others:  # a second time, before the end
        others.allgather(0)
    found = dense(workers)
    workers.broadcast_parameters(found)
    time.sleep(8 * workers.rank)
    return values(found)


def one_batch_more(workers):
    """In a loop without `Run`, which does not read the losses."""
    net = dense(workers)
    train(workers, net, sgd(workers, net), data(5 + workers.rank))


def third_returns(workers):
    if workers.rank != 2:
        train_with_run(workers, Batches(workers, 3))


def unknown_lengths(workers):
    train_with_run(workers, Batches(workers, 5 + workers.rank))


def known_lengths(workers):
    train_with_run(workers, Batches(workers, 5 + workers.rank, has_length=True))


def only_rank_0_evaluates(workers):
    train_with_run(workers, Batches(workers, 3), evaluates=lambda workers: workers.rank == 0)


def one_freezes_a_layer(workers):
    net = dense(workers)
    trainer = sgd(workers, net)
    train(workers, net, trainer)
    if workers.rank:
        net[1].collect_params().setattr('grad_req', 'null')
    train(workers, net, trainer)


def other_lr(workers):
    other_names(workers, 'sgd', learning_rate=0.1 * (workers.rank + 1))


def other_optimizer(workers):
    other_names(workers, ['sgd', 'nag'][workers.rank])


def other_divisor(workers):
    net = dense(workers)
    trainer = sgd(workers, net)
    workers.broadcast_parameters(net)
    with autograd.record():
        l = net(np.ones((workers.rank + 1, 6), dtype='float64'))
    l.backward()
    trainer.step(len(l))


def not_broadcast(workers):
    workers.broadcast_parameters = lambda net: None
    try:
        other_names(workers)
    finally:
        del workers.broadcast_parameters


def another_trainer_first(workers):
    if workers.rank:
        workers.trainer(trainable(dense(workers)), 'sgd', {})
    other_names(workers)


def other_seed(workers):
    train_with_run(workers, Batches(workers, 3), seed=workers.rank)


def other_schedule(workers):
    train_with_run(workers, Batches(workers, 3), lr=lambda number: 0.1 * (workers.rank + number))


def no_sum(workers):
    train_with_run(workers, Batches(workers, 3), job=Workers())


def other_setting(workers):
    run = Run(1, workers=workers)
    concise.train(1, ROWS + workers.rank, 0.5, data=([], []), net=nn.Dense(3), run=run)


def raises(workers):
    """Worker 1 raises an error while worker 0 waits for the gradients of the third step."""
    def batches():
        for number, batch in enumerate(data(8)):
            if number == 3 and workers.rank:
                raise KeyError('requested by the test')
            yield batch

    net = dense(workers)
    train(workers, net, sgd(workers, net), batches())


def too_large(workers):
    data_loader(workers, 2 * ROWS)


def named(*functions):
    """Return functions by name."""
    return {function.__name__: function for function in functions}


EQUAL = named(other_names, nadam, momentum, frozen_layer, frozen_batch_norm, data_loader, gan, unused_layers,
              unused_layers_and_clipping, unused_layers_in_two_calls)
REFUSED = named(too_large, known_lengths, other_lr, other_optimizer, other_divisor, not_broadcast, other_seed,
                other_schedule, no_sum, other_setting, another_trainer_first)
ENDED = named(without_block, third_returns, one_batch_more, unknown_lengths, only_rank_0_evaluates, one_freezes_a_layer,
              raises)


def all_equal(workers):
    """Return the results of all programs in `EQUAL`."""
    return {f'{name}/{key}': array for name, program in EQUAL.items() for key, array in program(workers).items()}


def all_refused(workers):
    """Print the errors of all programs in `REFUSED`. All workers raise them, so the job can continue."""
    for name, program in REFUSED.items():
        try:
            program(workers)
        except InputError as error:
            print(f'{name}: {error}')


if __name__ == '__main__':
    name, folder = sys.argv[1:]
    program = {'EQUAL': all_equal, 'REFUSED': all_refused, **ENDED}[name]
    with HorovodWorkers() if name != 'without_block' else contextlib.nullcontext(HorovodWorkers()) as workers:
        found = program(workers)
        if found:
            numpy.savez(f'{folder}/{workers.rank}.npz', **found)
