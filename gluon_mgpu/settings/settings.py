"""The settings of the chapters, each declared once.

To add a setting, declare it here and use it where it acts: `setup.py` makes the arguments of ``train`` from settings.
From the declaration follow the flag, the entry in ``config.json``, the value in a resumed run and the row in
``docs/command-line.md``.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.arguments import at_least_0, existing_folder, full_path, integer, not_empty, positive
from ..base.flags import checked_flag
from ..data import DATASETS
from ..devices.lists import MAX_DEVICES
from ..networks.precision import DTYPES, check_dtype
from ..parallel.allreduce import ALGORITHMS
from ..training.schedules import SCHEDULES
from .chapters import CHAPTERS


@dataclass(frozen=True)
class Setting:
    """A setting of all chapters, or of those that name it as their own."""

    name: str           # config key. Flag: `--` with hyphens. A bool also gets `--no-...`
    help: str = ''
    default: Any = None  # a chapter may have another one; if this is None, None is a valid value
    check: Callable[[str, Any], Any] = lambda name, value: value  # the value; ValueError with name, value and rule
    kind: type = str
    choices: Sequence[str] = ()  # the valid values, instead of a check
    metavar: str = 'N'           # of a value without choices
    default_text: str = ''       # a description of the default None
    page: str = ''               # of docs/
    fixed: bool = False          # a resumed run cannot change it, because its earlier steps would not fit another value

    @property
    def chapters(self) -> list[str]:
        """Return the names of the chapters that have this setting."""
        return [name for name, chapter in CHAPTERS.items() if self.name in chapter.own] or [*CHAPTERS]

    @property
    def flag(self) -> str:
        """Return the flag on the command line."""
        return f'--{self.name.replace("_", "-")}'

    def default_of(self, chapter: str) -> Any:
        """Return the default in a chapter."""
        return CHAPTERS[chapter].defaults.get(self.name, self.default)

    def checked(self, name: str, value: Any) -> Any:
        """Return a valid value; raise ValueError, with this name of the setting, for another one."""
        if value is None and self.default is None:
            return None
        if self.kind is bool and not isinstance(value, bool):
            raise ValueError(f'{name} {value!r}: must be True or False')
        if self.choices and value not in self.choices:
            raise ValueError(f'{name} {value!r}: must be one of {", ".join(self.choices)}')
        return self.check(name, value)

    def from_flag(self, word: str) -> Any:
        """Return the value of a flag, for argparse; 'none', for a default of None, clears that of a resumed run."""
        if word == 'none' and self.default is None and self.name not in ('out_dir', 'resume'):
            return None
        return checked_flag(self.checked, kind=self.kind)(word)


def _from(minimum: int, *maximum: int) -> Callable[[str, Any], int]:
    return lambda name, value: integer(name, value, minimum, *maximum)


COUNT: dict[str, Any] = {'check': _from(1), 'kind': int}
SETTINGS = (
    Setting('num_gpus', 'number of devices: GPUs, or CPU contexts on a machine without GPUs',
            check=_from(1, MAX_DEVICES), kind=int, default_text='2, or 1 on a machine with one GPU'),
    Setting('devices', "names of devices: 'gpu:0,gpu:1', 'cpu:0-3', 'gpu:all' (NVIDIA GPUs), 'cpu:all' (one CPU "
            'context per core)', check=not_empty, metavar='LIST',
            default_text='the first, as many as --num-gpus', page='devices.md#naming-devices'),
    Setting('batch_size', 'images in a batch, over all devices', 256, **COUNT, metavar='ROWS', fixed=True),
    Setting('lr', 'learning rate', 0.1, positive, float, metavar='RATE'),
    Setting('accumulate', 'train each batch in N parts, which needs less memory', 1, **COUNT,
            page='larger-batches.md#gradient-accumulation'),
    Setting('num_epochs', 'passes over the training images', 10, **COUNT),
    Setting('seed', 'seed of the initial parameters and the order of the images', 0, _from(0), int, fixed=True),
    Setting('allreduce', 'algorithm that sums the gradients', choices=['star', *ALGORITHMS],
            default_text='as in the book, a star: sum on the first device, then copy to the others',
            page='allreduce.md'),
    Setting('dtype', 'precision of the convolutions; bfloat16 needs a CPU with avx512_bf16, float16 needs GPUs (not '
            'tested); both need MXNet 1.9', 'float32', choices=DTYPES, fixed=True),
    Setting('optimizer', 'how the parameters are updated; adam needs a smaller learning rate, such as 0.001', 'sgd',
            choices=('sgd', 'adam'), fixed=True, page='larger-batches.md'),
    Setting('clip_norm', 'limit the norm of the gradient of the mean loss to C', check=positive, kind=float,
            metavar='C', default_text='no limit', page='larger-batches.md#clipping-by-the-global-norm'),
    Setting('momentum', 'share of the last step that is added to each step', 0.0,
            lambda name, value: at_least_0(name, value, 1), float, metavar='M', fixed=True,
            page='larger-batches.md'),
    Setting('weight_decay', 'share of the parameters that is added to their gradients', 0.0, at_least_0, float,
            metavar='WD', fixed=True, page='larger-batches.md'),
    Setting('sync_batch_norm', 'compute batch norm over the rows of all devices and workers instead of those of each',
            False, kind=bool, fixed=True, page='departures.md#how-far-k-devices-equal-one'),
    Setting('lr_schedule', 'cosine: the rate falls to almost 0; step: it is divided by 10 after half and three '
            'quarters of the steps', 'constant', choices=SCHEDULES, page='larger-batches.md'),
    Setting('warmup_epochs', 'raise the rate from 0 to --lr in the first N epochs', 0, _from(0), int,
            page='larger-batches.md'),
    Setting('patience', 'stop when the accuracy has not improved for N epochs', **COUNT,
            default_text='train all epochs'),
    Setting('dataset', 'auto: fashion-mnist, or glyphs, generated images, if it cannot be downloaded', 'auto',
            choices=DATASETS, fixed=True, page='#data'),
    Setting('data_dir', 'folder with fashion-mnist/ or mnist/; nothing is downloaded', check=existing_folder,
            metavar='DIR', page='#data',
            default_text='$GLUON_MGPU_DATA; if that is not set, ~/.cache/gluon-mgpu, filled by downloads'),
    Setting('train_size', 'use only the first N training images', **COUNT, default_text='all'),
    Setting('test_size', 'evaluate on the first N test images only', **COUNT, default_text='all'),
    Setting('validation_size', 'hold out the last N training images and evaluate these after each epoch, and the test '
            'images once, at the end', **COUNT, default_text='none', fixed=True,
            page='checkpoints.md#the-best-epoch'),
    Setting('out_dir', 'new folder for the results', check=full_path, metavar='DIR',
            default_text='runs/CHAPTER-DATE-TIME'),
    Setting('checkpoint_every', 'write a checkpoint every STEPS batches and at the end', **COUNT,
            metavar='STEPS', default_text='after every epoch', page='checkpoints.md'),
    Setting('resume', 'resume the run in a folder or from one of its checkpoints; auto: resume the run in --out-dir, '
            'or start it', check=full_path, metavar='auto|PATH', page='checkpoints.md'),
    Setting('keep_best', 'keep the checkpoint of the epoch with the best accuracy as well', False, kind=bool,
            page='checkpoints.md#the-best-epoch'),
    Setting('timeline', 'profile some training steps and plot the one of median duration in timeline.png', False,
            kind=bool, page='timeline.md'),
    Setting('plot', 'draw accuracy.png', True, kind=bool),
    Setting('horovod', 'train as one worker of a job started by horovodrun; each worker has one device', False,
            kind=bool, page='many-machines.md'),
    Setting('quiet', 'print only the summary and warnings', False, kind=bool),
)
ALL = {setting.name: setting for setting in SETTINGS}


def flags_of(chapter: str) -> list[Setting]:
    """Return the settings of a chapter."""
    return [setting for setting in SETTINGS if chapter in setting.chapters]


def defaults(chapter: str) -> dict:
    """Return the defaults of the settings of a chapter."""
    return {setting.name: setting.default_of(chapter) for setting in flags_of(chapter)}


def check_together(settings: dict, devices: list) -> None:
    """Raise ValueError if some settings do not fit each other or the devices."""
    if settings['warmup_epochs'] >= settings['num_epochs']:
        raise ValueError(f'--warmup-epochs {settings["warmup_epochs"]}: must be less than --num-epochs '
                         f'{settings["num_epochs"]}')
    if settings.get('optimizer') == 'adam' and settings['momentum']:
        raise ValueError(f'--momentum {settings["momentum"]}: adam has none; leave it out')
    if 'dtype' in settings:
        check_dtype(settings['dtype'], devices, '--dtype')
