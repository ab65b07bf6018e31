"""The chapters, a row for each: settings, command line, `predict`, `export` and the list of programs follow from it."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

OF_TRAINER = 'optimizer', 'clip_norm', 'momentum', 'weight_decay', 'sync_batch_norm'


@dataclass(frozen=True)
class Chapter:
    """A chapter: the module ``gluon_mgpu.NAME``, with ``train`` and ``main``."""

    name: str
    network: str  # its name for people
    purpose: str  # of the program
    make_net: Callable[[Any, dict], Any]   # (module, configuration of a run) -> a Gluon block, or parameters as a list
    own: Sequence[str] = ()                # the settings that not all chapters have
    defaults: dict[str, Any] = field(default_factory=dict)  # where they differ from the declarations of the settings
    forward: str = ''                      # for a list: the function of (X, params) in the module
    param_names: Sequence[str] = ()        # and the parameters' names in an exported model

    def scores_of(self, module: Any, net: Any, devices: Sequence) -> Callable:
        """Return the function from images to scores of a network of this chapter, or of lists, one per device."""
        if not self.forward:
            return net
        forward, params_on = getattr(module, self.forward), dict(zip(devices, net))
        return lambda X: forward(X, params_on[X.ctx])


def _lenet(scratch: Any, config: dict) -> list:
    return scratch.init_params()


def _resnet18(concise: Any, config: dict) -> Any:
    return concise.resnet18(10, config['dtype'])


CHAPTERS = {chapter.name: chapter for chapter in (
    Chapter('scratch', 'LeNet', 'train LeNet, implemented from scratch (D2L 13.5)', _lenet, own=('allreduce',),
            defaults={'lr': 0.2}, forward='lenet', param_names=('W1', 'b1', 'W2', 'b2', 'W3', 'b3', 'W4', 'b4')),
    # The book trains ResNet-18 on two GPUs with 512 and 0.2, to give each GPU 256 rows
    Chapter('concise', 'ResNet-18', "train ResNet-18 with Gluon's Trainer (D2L 13.6)",
            _resnet18, own=('dtype', *OF_TRAINER)),
)}


def chapter_of(net: Any) -> Chapter:
    """Return the chapter of a trained network: lists of parameters are LeNet's, and a block is a ResNet-18."""
    return CHAPTERS['scratch'] if isinstance(net, (list, tuple)) else CHAPTERS['concise']
