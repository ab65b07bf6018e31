"""Tests of the arithmetic that the doctor checks."""
import pytest
from bfloat16 import needs_bfloat16

from gluon_mgpu.mxnet_setup.compat import mx
from gluon_mgpu.programs.doctor import processor_check


@pytest.mark.parametrize(('operation', 'dtype', 'variable'), [
    ('matrix products', 'float32', 'OPENBLAS_CORETYPE=Nehalem'), ('convolutions', 'float32', 'DNNL_MAX_CPU_ISA=AVX2'),
    pytest.param('convolutions', 'bfloat16', 'DNNL_MAX_CPU_ISA=AVX2', marks=needs_bfloat16)])
@pytest.mark.parametrize('wrong', [20, float('nan')])
def test_wrong_arithmetic(operation, dtype, variable, wrong, monkeypatch):
    """One wrong row is found, and the remedy is the variable of its library."""
    def error(its_dtype, operator, reference, arrays):
        name = 'matrix products' if operator is mx.nd.dot else 'convolutions'
        spoilt = (name, its_dtype) == (operation, dtype)
        return right_error(its_dtype, lambda *given: spoil(operator(*given)) if spoilt else operator(*given), reference,
                           arrays)

    def spoil(result):
        spoilt = mx.nd.amp_cast(result, dtype='float32')
        spoilt[0] = spoilt[0] + wrong
        return spoilt

    right_error = processor_check._error
    monkeypatch.setattr(processor_check, '_error', error)
    monkeypatch.setattr(processor_check.instructions, 'amx_obstacle', lambda: 'the processor has none')
    with pytest.raises(ValueError, match=f'^{operation} in {dtype} are wrong on this processor: export {variable}$'):
        processor_check.check()


def test_right_arithmetic():
    assert processor_check.check()[:2] == ['matrix products in float32', 'convolutions in float32']
