"""Tests of the instructions that MXNet's libraries use: AMX in oneDNN, AVX2 in OpenBLAS."""
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from slow import slow

from gluon_mgpu.mxnet_setup import instructions

REPO = Path(__file__).parents[2]
LIMITS = 'DNNL_MAX_CPU_ISA', 'ONEDNN_MAX_CPU_ISA', 'OPENBLAS_CORETYPE', 'MXNET_MKLDNN_ENABLED'
IS_MXNET_2_OF_PYPI = instructions._is_mxnet_2_of_pypi
WITH_AMX = ['avx2', 'fma', *instructions.AMX_FLAGS]
linux = pytest.mark.skipif(sys.platform != 'linux', reason='AMX and the bundled OpenBLAS are for Linux')
avx2 = pytest.mark.skipif(not instructions.has_avx2(), reason='needs a processor with AVX2 and FMA')


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(instructions, '_is_mxnet_2_of_pypi', lambda: False)
    instructions.amx_obstacle.cache_clear()
    yield
    instructions.amx_obstacle.cache_clear()


@pytest.fixture
def machine(monkeypatch):
    """Return a function that simulates a processor and Linux's answer, and the list of questions to Linux."""
    questions = []

    def simulate(flags, answer=0):
        monkeypatch.setattr(instructions, 'processor_flags', lambda: flags)
        monkeypatch.setattr(instructions, '_request_tiles', lambda: questions.append('?') or answer)
        return questions
    return simulate


# AMX

def test_amx(machine):
    questions = machine(WITH_AMX)
    assert instructions.variables() == {'DNNL_MAX_CPU_ISA': 'AVX512_CORE_AMX'}
    assert instructions.variables() and len(questions) == 1  # Linux is asked once
    assert instructions.bfloat16_obstacle() == ''


@pytest.mark.parametrize('missing', sorted(instructions.AMX_FLAGS))
def test_a_processor_without_amx(missing, machine):
    questions = machine([flag for flag in WITH_AMX if flag != missing])
    assert instructions.variables() == {} and instructions.amx_obstacle() == 'the processor has none'
    assert questions == []


@pytest.mark.parametrize('answer', [errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOSPC])
def test_a_system_that_refuses_the_tile_registers(answer, machine):
    machine(WITH_AMX, answer)
    assert instructions.variables() == {}
    assert f'refuses the tile registers ({os.strerror(answer)}): use Linux 5.16' in instructions.amx_obstacle()
    assert instructions.bfloat16_obstacle() == ''  # it works without AMX


@pytest.mark.parametrize(('value', 'asked'), [('AVX2', False), ('AVX512_CORE_BF16', False), ('DEFAULT', False),
                                              ('ALL', True), ('AVX512_CORE_AMX', True)])
def test_the_users_instructions_have_priority(value, asked, machine, monkeypatch):
    """If they include AMX, the permission is needed all the same: oneDNN would crash without it."""
    monkeypatch.setenv('DNNL_MAX_CPU_ISA', value)
    questions = machine(WITH_AMX)
    assert instructions.variables() == {} and bool(questions) == asked
    assert instructions.amx_obstacle() == ('' if asked else f'DNNL_MAX_CPU_ISA={value} is set: unset it')


@pytest.mark.parametrize(('flags', 'answer', 'variable', 'value', 'message'), [
    (['avx2'], 0, 'DNNL_MAX_CPU_ISA', '', 'this CPU has no avx512_bf16 and would be slower with it; use float32'),
    (WITH_AMX, 0, 'DNNL_MAX_CPU_ISA', 'AVX2', 'DNNL_MAX_CPU_ISA=AVX2 switches avx512_bf16 off; unset it, or use'),
    (WITH_AMX, 0, 'DNNL_MAX_CPU_ISA', 'AVX512_CORE', 'DNNL_MAX_CPU_ISA=AVX512_CORE switches avx512_bf16 off; unset'),
    (WITH_AMX, 0, 'DNNL_MAX_CPU_ISA', 'AVX512_CORE_BF16', ''), (WITH_AMX, 0, 'DNNL_MAX_CPU_ISA', 'nonsense', ''),
])
def test_obstacles_for_bfloat16(flags, answer, variable, value, message, machine, monkeypatch):
    machine(flags, answer)
    monkeypatch.setenv(variable, value)
    found = instructions.bfloat16_obstacle()
    assert found.startswith(message) and bool(found) == bool(message)


# The libraries, in a new process

def run(code, **environment):
    env = {name: value for name, value in os.environ.items() if name not in LIMITS}
    result = subprocess.run([sys.executable, '-c', code], cwd=REPO, env={**env, **environment}, text=True,
                            capture_output=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


AGAIN = """
import os, subprocess
import gluon_mgpu
from gluon_mgpu.mxnet_setup import instructions, runtime
instructions.AMX = 'SSE41'  # an instruction set whose use any processor shows
instructions.processor_flags = lambda: sorted(instructions.AMX_FLAGS)
instructions._request_tiles = lambda: {answer}
instructions.amx_obstacle.cache_clear()
for name in runtime.prepare().variables:
    del os.environ[name]
runtime.prepare.cache_clear()
print(runtime.prepare().variables.get('DNNL_MAX_CPU_ISA'), flush=True)
from gluon_mgpu.mxnet_setup.compat import mx
mx.nd.softmax(mx.nd.ones((1, 2))).wait_to_read()
print(subprocess.run('echo "${{DNNL_MAX_CPU_ISA-unset}}" "${{OPENBLAS_CORETYPE-unset}}"', shell=True,
                     stdout=subprocess.PIPE, text=True).stdout)
"""


@linux
@pytest.mark.parametrize(('answer', 'variable'), [(0, 'SSE41'), slow(1, 'None')])
def test_onednn_reads_our_variable_and_other_programs_do_not_inherit_it(answer, variable):
    pytest.importorskip('mxnet')
    lines = run(AGAIN.format(answer=answer), DNNL_VERBOSE='1').splitlines()
    assert lines[0] == variable and lines[-1] == 'unset unset'
    assert any('cpu,isa:Intel SSE4.1' in line for line in lines) == (answer == 0)


KERNELS = """
import _ctypes, ctypes, os, re
import gluon_mgpu
from gluon_mgpu.mxnet_setup import instructions

def kernels_of_numpy():
    for path in {*re.findall(r'/.*openblas.*', open('/proc/self/maps').read())}:
        if path == instructions._bundled_openblas():
            continue
        library = ctypes.CDLL(path)
        for name in ('scipy_openblas_get_corename64_', 'scipy_openblas_get_corename', 'openblas_get_corename64_'):
            if hasattr(library, name):
                function = getattr(library, name)
                function.restype = ctypes.c_char_p
                return function().decode()

def unload():
    while library := instructions.loaded('libopenblas.so.0'):
        _ctypes.dlclose(library._handle)  # from loaded()
        _ctypes.dlclose(library._handle)

print(instructions.kernels(), kernels_of_numpy())
unload()
instructions.AVX2_KERNELS = ()  # as if it did not know this processor: it would choose kernels without AVX2
instructions.load_openblas()
print(instructions.kernels(), kernels_of_numpy(), os.environ.get('OPENBLAS_CORETYPE'))
"""
bundled = pytest.mark.skipif(not instructions._bundled_openblas(), reason='this MXNet has no OpenBLAS of its own')


@avx2
@bundled
def test_openblas_uses_avx2_also_on_processors_that_it_does_not_know():
    known, unknown = (line.split() for line in run(KERNELS).splitlines())
    assert known[0] in instructions.AVX2_KERNELS
    assert unknown == ['Haswell', known[1], 'None']  # NumPy's OpenBLAS and other programs are not affected


@avx2
@bundled
@pytest.mark.parametrize(('value', 'kernels'), [('', 'Haswell'), ('Nehalem', 'Nehalem')])
def test_the_users_kernels_have_priority(value, kernels):
    """OpenBLAS takes '' for an unknown processor."""
    assert run(KERNELS, OPENBLAS_CORETYPE=value).split()[0] == kernels


def test_mxnet_2_of_pypi(machine, monkeypatch):
    """Its OpenBLAS is a part of libmxnet.so and falls back to old kernels as well."""
    machine(['avx2', 'fma'])
    monkeypatch.setattr(instructions, '_is_mxnet_2_of_pypi', IS_MXNET_2_OF_PYPI)
    monkeypatch.setattr(instructions.metadata, 'version', lambda name: '2.0.0b1')
    assert instructions.variables() == {'OPENBLAS_CORETYPE': 'Haswell'}
    monkeypatch.setenv('OPENBLAS_CORETYPE', 'Nehalem')
    assert instructions.variables() == {}
    monkeypatch.delenv('OPENBLAS_CORETYPE')
    machine(['avx2'])
    assert instructions.variables() == {}
    machine(['avx2', 'fma'])
    monkeypatch.setattr(instructions.metadata, 'version', lambda name: '2.0.0+cu13')
    assert instructions.variables() == {}


def test_nothing_changes_on_other_processors(machine, monkeypatch):
    """ARM64 has none of the flags."""
    machine([])
    monkeypatch.setattr(instructions.ctypes, 'CDLL', lambda *arguments: pytest.fail('loads a library'))
    instructions.load_openblas()
    assert instructions.variables() == {}
