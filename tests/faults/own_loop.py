"""A loop of one's own with a `Run`, whose network has layers that it never uses; as a program, it stops at a step.

    python own_loop.py FOLDER STEP
"""
import os
import signal
import sys
from pathlib import Path

import gluon_mgpu as d2l
from gluon_mgpu.checkpoints.run_folder import checkpoints
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, np

NUM_BATCHES = 3


class Net(gluon.Block):
    def __init__(self):
        super().__init__()
        self.used, self.frozen, self.summed = gluon.nn.Dense(2), gluon.nn.Dense(3), gluon.nn.Dense(3)
        self.norm = gluon.nn.BatchNorm()

    def forward(self, X):
        return self.used(X)


def train(folder, resume=None, stop_at=None) -> None:
    """Train three epochs; the process stops at a step. `resume` is the index of a checkpoint, 0 for the newest."""
    devices, net = d2l.try_all_gpus()[:2], Net()
    net.initialize('ones', ctx=devices)
    for layer, grad_req in ((net.frozen, 'null'), (net.summed, 'add')):
        for param in layer.collect_params().values():
            param.grad_req = grad_req
    trainer = gluon.Trainer(net.used.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9})
    checkpointing = d2l.CheckpointCallback(folder, resume=None if resume is None else checkpoints(folder)[resume])
    run = d2l.Run(3, quiet=True, folder=folder, callbacks=checkpointing)
    for _ in run.epochs(net, trainer):
        for X, _ in run.batches([(np.array([[i, 1.0], [2, i]]), np.zeros(2)) for i in range(NUM_BATCHES)]):
            if run.num_steps == stop_at:
                os.kill(os.getpid(), signal.SIGSTOP)
            with autograd.record():
                ls = [(net(rows) ** 2).sum(axis=1) for rows in d2l.split_and_load(X, devices)]
            autograd.backward(ls)
            trainer.step(4)
            run.record_losses(ls)
        run.end_epoch(0.5)


if __name__ == '__main__':
    train(Path(sys.argv[1]), stop_at=int(sys.argv[2]))
