"""Works and contenders of the comparison."""
from __future__ import annotations

from typing import NamedTuple

from gluon_mgpu.base.machine import num_cores

CORES = num_cores()
OURS = 'ours'  # reference for the ratios
HOROVOD = 'ours-horovod'  # needs Horovod, which `make horovod` builds


class Work(NamedTuple):
    """One table: a network, its precision and settings."""

    title: str
    chapter: str
    dtype: str
    batch_size: int
    lr: float
    rows: int  # per epoch
    quick_rows: int  # per epoch with --quick
    mflop: float  # million operations per image in convolutions and dense layers, forward and backward
    cropped_mflop: float  # the same without the pixels that do not change the scores


class Contender(NamedTuple):
    """One row of the tables."""

    program: str  # in contenders/
    environment: str | None  # None: the current Python
    options: dict  # entries of its job
    works: tuple
    crops: bool = True  # the images of LeNet to 26 x 26, as ours does, which does not change the scores


WORKS = {
    'scratch': Work('LeNet from scratch, float32', 'scratch', 'float32', 256, 0.2, 60_000, 60 * 256, 13.26, 10.64),
    'concise': Work('ResNet-18, float32', 'concise', 'float32', 256, 0.1, 2048, 512, 2734, 2734),
    'concise-bfloat16': Work('ResNet-18, bfloat16', 'concise', 'bfloat16', 256, 0.1, 2048, 512, 2734, 2734),
}
FLOAT32 = ('scratch', 'concise')
CONTENDERS = {
    OURS: Contender('ours.py', None, {'devices': CORES}, tuple(WORKS)),
    'ours-one-device': Contender('ours.py', None, {'devices': 1}, tuple(WORKS)),
    HOROVOD: Contender('workers.py', None, {}, FLOAT32),
    'd2l': Contender('book.py', 'd2l', {'devices': CORES}, FLOAT32, crops=False),
    'd2l-one-device': Contender('book.py', 'd2l', {'devices': 1}, FLOAT32, crops=False),
    'd2l-tuned': Contender('book.py', 'd2l', {'devices': CORES, 'tuned': True}, FLOAT32),
    'torch-eager': Contender('pytorch.py', 'torch', {'mode': 'eager'}, tuple(WORKS)),
    'torch-compile': Contender('pytorch.py', 'torch', {'mode': 'compile'}, tuple(WORKS)),
    'torch-ddp': Contender('pytorch.py', 'torch', {'mode': 'ddp'}, tuple(WORKS)),
}
