"""What a program reports on stderr."""
import re

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR


def complaints(stderr):
    """Return the lines that report a problem: with MXNet 1.9 all, with MXNet 2 those with a word such as 'error'.

    CUDA builds print a harmless line when a KVStore is created without a GPU. MXNet 2 prints its memory pools and
    pooling operators, from several threads, so that these lines may be mixed up.
    """
    return [line for line in stderr.splitlines() if 'GPU context requested, but no GPUs found' not in line
            and (MXNET_MAJOR < 2 or re.search('traceback|warning|error|failed', line, re.IGNORECASE))]
