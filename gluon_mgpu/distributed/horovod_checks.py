"""What must be true before Horovod's workers begin: Horovod is there for this MXNet, and no two share a GPU."""
from __future__ import annotations

import importlib
import importlib.util

from ..mxnet_setup.compat import MXNET_MAJOR, mx
from ..mxnet_setup.installation import how_to_get_horovod
from .workers import agreed


def check_horovod() -> None:
    """Refuse to go on without Horovod.

    Raises
    ------
    ValueError
        With the remedy, if it is not installed, or not for this MXNet.
    """
    if MXNET_MAJOR >= 2:
        raise ValueError(f'Horovod has no support for MXNet {mx.__version__}: use MXNet 1.9.1')
    if importlib.util.find_spec('horovod') is None:
        raise ValueError(f'Horovod is not installed: {how_to_get_horovod()}')
    try:
        importlib.import_module('horovod.mxnet')
    except ImportError as error:
        raise ValueError(f'Horovod is not built for this MXNet ({error}): {how_to_get_horovod()}') from None


def check_own_gpus(told: list[tuple[str, str]], rank: int = 0) -> None:
    """Refuse workers that share a GPU: NCCL would hang, or their sums take turns.

    Parameters
    ----------
    told : list of (str, str)
        Of each worker its host and its GPU's UUID, '' for none.
    rank : int
        This worker's; the first tells the error for all.
    """
    seen: dict[str, int] = {}
    for worker, (host, uuid) in enumerate(told):
        if uuid and seen.setdefault(uuid, worker) != worker:
            error = agreed(ValueError(f'workers {seen[uuid]} and {worker} have the same GPU ({host}, UUID {uuid}): '
                                      'start as many workers on a machine as it has GPUs'))
            error.told = rank != 0  # type: ignore[attr-defined]
            raise error
