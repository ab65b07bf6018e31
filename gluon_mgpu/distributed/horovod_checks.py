"""Checks before Horovod's workers start: Horovod is installed for this MXNet, and no GPU has two workers."""
from __future__ import annotations

import importlib
import importlib.util

from ..base.program import BAD_INPUT, JobError
from ..mxnet_setup.compat import MXNET_MAJOR, mx
from ..mxnet_setup.installation import how_to_get_horovod


def check_horovod() -> None:
    """Raise ValueError, with the remedy, if Horovod is missing or does not work with this MXNet."""
    if MXNET_MAJOR >= 2:
        raise ValueError(f'Horovod does not support MXNet {mx.__version__}: use MXNet 1.9.1')
    if importlib.util.find_spec('horovod') is None:
        raise ValueError(f'Horovod is not installed: {how_to_get_horovod()}')
    try:
        importlib.import_module('horovod.mxnet')
    except (ImportError, OSError) as error:  # OSError: a library that it was built with is missing
        raise ValueError(f'Horovod is not built for this MXNet ({error}): {how_to_get_horovod()}') from None


def check_own_gpus(gpus: list[tuple[str, str]], rank: int = 0) -> None:
    """Raise JobError, which rank 0 reports, if two workers share a GPU: NCCL would hang.

    `gpus` has the host of each worker and the UUID of its GPU, '' without a GPU. `rank` is that of this worker.
    """
    seen: dict[str, int] = {}
    for worker, (host, uuid) in enumerate(gpus):
        if uuid and seen.setdefault(uuid, worker) != worker:
            raise JobError(f'workers {seen[uuid]} and {worker} have the same GPU ({host}, UUID {uuid}): start at most '
                           'one worker per GPU', BAD_INPUT, on_all_ranks=True, reported=rank != 0)
