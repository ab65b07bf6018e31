"""Mark of tests that need bfloat16."""
import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR
from gluon_mgpu.networks import precision

needs_bfloat16 = pytest.mark.skipif(MXNET_MAJOR >= 2 or precision.bfloat16_obstacle() != '',
                                    reason='needs MXNet 1.9 and a CPU with avx512_bf16')
