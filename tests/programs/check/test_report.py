"""The report, its page, and bad input."""
import textwrap
from functools import partial
from pathlib import Path

import numpy
import pytest
from docs_code import blocks
from steps_to_check import (
    make_arrays,
    make_network,
    step_from_scratch,
    step_with_trainer,
    with_dropout_and_batch_norm,
)

from gluon_mgpu import check_data_parallel
from gluon_mgpu.mxnet_setup.compat import gluon, mx, np
from gluon_mgpu.programs.check import Report
from gluon_mgpu.programs.check.report import NOT_CHECKED

SHARED = gluon.nn.Dense(4, in_units=6)


@pytest.mark.slow
def test_batch_norm_and_dropout_are_named_and_are_no_mistakes(batches):
    report = check_data_parallel(partial(make_network, layers=with_dropout_and_batch_norm), step_with_trainer, batches)
    assert report.ok, report
    assert report.notes[:2] == ['dropout (2): each device draws its own random numbers; checked without dropout.',
                                'batch norm (1): each device normalizes by its own rows; checked with fixed '
                                'statistics.']
    assert {row[3] for row in report.parameters} == {'equal'}


def test_the_page(image_batches):
    """Its step is wrong, then less wrong, then right; the diagnoses are those on the page."""
    page = Path(__file__).parents[3] / 'docs' / 'check.md'
    code_of = blocks(page.read_text())
    before, end = code_of['wrong'].split('    for i in range(2):\n')
    codes = {'report': code_of['wrong'], 'next report': code_of['wrong'] + code_of['right'], 'right': ''.join(
        [before, textwrap.indent(code_of['also right'].strip('\n'), '    '), '\n    for i in range(2):\n', end,
         code_of['right']])}
    for name, code in codes.items():
        names = {}
        exec(code, names)
        report = check_data_parallel(names['make'], names['train_batch'], image_batches)
        assert report.ok is (name == 'right'), report
        if not report.ok:
            printed, shown = (text.partition('WRONG')[2].split() for text in (str(report), code_of[name]))
            assert printed[:len(shown)] == shown
            assert printed[len(shown):] == ([] if name == 'report' else NOT_CHECKED.split())


@pytest.mark.parametrize('change, message', [
    ({'devices': [mx.cpu(0)]}, '^devices .cpu.0..: name at least two, such as cpu:0,cpu:1'),
    ({'batches': []}, '^batches is empty: pass a list'),
    ({'batches': [(numpy.ones((1, 6)), numpy.ones(1))]}, '^batches with 1 row in all: 3 devices need at least 12$'),
    ({'batches': [np.ones((16, 6)), np.ones(16)]},
     r'^batches has array \(16, 6\) instead of a pair \(X, y\): pass a list such as \[\(X, '),
    ({'batches': ((numpy.ones((99, 6)), numpy.ones((99, 2))), numpy.ones(99))},  # several inputs
     r'^batches has array \(99,\) instead of a pair'),
    ({'batches': [(numpy.ones((16, 6)), numpy.ones((16, 2)), numpy.ones(16))]},
     r'^batches has tuple \(array \(16, 6\), array \(16, 2\), array \(16,\)\) instead of a pair \(X, y\)'),
    *[({'batches': [batch]}, r'^batches has .* instead of a pair \(X, y\): .* with the same number of rows$')
      for batch in ((numpy.ones((16, 6)), numpy.float32(3)), ((), ()), (numpy.ones((16, 6)), numpy.ones(15)),
                    mx.io.DataBatch([mx.nd.ones((16, 6))], [mx.nd.ones(16)]))],
    ({'make': lambda devices: [SHARED.initialize(ctx=devices, force_reinit=True), SHARED]},
     'make returns the same parameters at each call: create new ones in it'),
    ({'make': lambda devices: len}, 'make returned builtin_function_or_method without parameters: return the network'),
    ({'train_batch': lambda *args: None}, 'train_batch changes no parameter on one device: it must'),
    ({'make': lambda devices: [np.ones(3)]}, 'make returned list without parameters'),
    ({'make': lambda devices: [params[:4 - i] for i, params in enumerate(make_arrays(devices))]},
     r'^make puts other parameters on cpu\(1\) \(3\) than on a single device \(4\): every device needs its own copy of '
     'all parameters, so layers on different devices are not checked$'),
])
def test_bad_input_in_one_line(change, message, batches):
    arguments = {'make': make_arrays, 'train_batch': step_from_scratch, 'batches': batches, **change}
    with pytest.raises(ValueError, match=message) as error:
        check_data_parallel(**arguments)
    assert len(str(error.value).splitlines()) == 1


def test_long_names_do_not_break_the_table():
    lines = str(Report(True, '3 devices', [('layer' * 20, 1e-9, 0.0, 'equal')], [], [])).splitlines()
    assert lines[2].endswith('  verdict') and lines[3].endswith('  0.0e+00  equal')
