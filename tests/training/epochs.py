"""Epochs with losses given by hand."""
from gluon_mgpu.mxnet_setup.compat import np

NO_PARAMETERS = [[], []]  # a network on two devices
NOT_BEGUN = {'num_batches': 0, 'epoch_length': 0, 'loss': 0.0, 'rows': 0, 'seconds': 0.0}  # an epoch


def feed(run, batches):
    """Run one epoch. `batches` are the losses: for each batch a list of shards, each a list of rows."""
    rows = [None] * len(batches)
    for _, shards in zip(run.batches(rows), batches):  # zip requests one batch more, which ends the epoch
        run.record_losses([np.array(shard) for shard in shards])


def train(run, losses=([[1.0]],), net=NO_PARAMETERS, test_acc=0.5, **options):
    """Run all epochs with the same losses, as for `feed`; return the run."""
    for _ in run.epochs(net, **options):
        feed(run, losses)
        run.end_epoch(test_acc)
    return run
