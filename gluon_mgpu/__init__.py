"""Multi-device training with Apache MXNet's Gluon: the multi-GPU chapters of *Dive into Deep Learning*.

``import gluon_mgpu as d2l`` provides the names in the chapters' code. The first that needs MXNet imports it.
"""
import importlib

from gluon_mgpu.mxnet_setup import runtime

__version__ = '5.0.0'

runtime.prepare()

_NAMES_OF = {  # module: its public names; a deep path to anything else may change
    'base.program': ('run_program',),
    'devices.lists': ('parse_devices', 'try_all_gpus', 'try_gpu'),
    'data': ('load_data', 'load_data_fashion_mnist'),
    'data.batches': ('BatchIterator',),
    'data.folders': ('DownloadError',),
    'data.shards': ('shard_rows',),
    'networks.hybridized': ('hybridized',),
    'networks.loss': ('cross_entropy',),
    'networks.resnet': ('Residual', 'resnet18'),
    'networks.static_shapes': ('StaticSequential',),
    'parallel.accumulation': ('concise_in_parts', 'scratch_in_parts'),
    'parallel.allreduce': ('ring', 'tree'),
    'parallel.clipping': ('ClippingTrainer',),
    'parallel.split': ('split_and_load', 'split_batch'),
    'parallel.step': ('gradients', 'prepare_idle_devices'),
    'parallel.sync_batch_norm.synchronized': ('SyncBatchNorm',),
    'parallel.sync_batch_norm.train_batch': ('train_batch_synchronized',),
    'distributed.horovod_workers': ('HorovodWorkers',),
    'training.callback': ('Callback',),
    'ch13': ('train_batch_ch13', 'train_ch13'),
    'training.epoch': ('DivergenceError',),
    'training.parameters': ('parameters_by_name',),
    'training.evaluate': ('accuracy', 'evaluate_accuracy_gpu', 'evaluate_accuracy_gpus'),
    'training.run': ('Run',),
    'training.schedules': ('schedule',),
    'training.timer': ('Accumulator', 'Timer'),
    'checkpoints.checkpoint_callback': ('CheckpointCallback',),
    'outputs.plot': ('Animator',),
    'outputs.timeline.draw': ('draw_timeline',),
    'outputs.timeline.record': ('check_profiler', 'record_timeline'),
    'scratch': ('sgd',),
    'programs.check': ('check_data_parallel',),
    'programs.onnx.writing': ('to_onnx',),
}
PLACES = {name: (module, name) for module, names in _NAMES_OF.items() for name in names}
PLACES.update({  # public name: (module, its name there)
    'save_checkpoint': ('checkpoints.checkpoint', 'save'), 'load_checkpoint': ('checkpoints.checkpoint', 'load'),
})

__all__ = sorted(PLACES)


def __getattr__(name: str):
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. For a name of an earlier version, see "
                             "CHANGELOG.md. For one of the book's other chapters, pip install --no-deps d2l pandas "
                             "ipython, import gluon_mgpu first, and then: from d2l import mxnet as d2l")
    module, attribute = PLACES[name]
    return getattr(importlib.import_module(f'{__name__}.{module}'), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
