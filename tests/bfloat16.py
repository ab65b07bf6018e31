"""Mark of tests that need bfloat16."""
import os

import pytest

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR
from gluon_mgpu.networks import precision

ALLOWED = (os.environ.get('DNNL_MAX_CPU_ISA') or 'ALL').upper() in ('ALL', 'AVX512_CORE_BF16', 'AVX512_CORE_AMX')
needs_bfloat16 = pytest.mark.skipif(MXNET_MAJOR >= 2 or not ALLOWED or 'avx512_bf16' not in precision.processor_flags(),
                                    reason='needs MXNet 1.9 and a CPU with avx512_bf16')
