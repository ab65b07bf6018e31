"""Tests of reading traces and inferring phases."""

import pytest
from lanes import CPU0, CPU1, OPERATOR, PINNED

from gluon_mgpu.outputs.timeline.draw import COLORS
from gluon_mgpu.outputs.timeline.read import Event, infer_phases, read


def test_read_pairs_beginnings_and_ends_by_device_thread_and_name(write_trace):
    path = write_trace(
        ('B', CPU0, 7, 'Convolution', 1000), ('B', CPU1, 8, 'Convolution', 2000),
        ('E', CPU1, 8, 'Convolution', 5000), ('E', CPU0, 7, 'Convolution', 4000),
        ('B', CPU0, 7, '_backward_relu', 6000), ('B', CPU0, 7, '_backward_relu', 6500),  # nested
        ('E', CPU0, 7, '_backward_relu', 7000), ('E', CPU0, 7, '_backward_relu', 8000),
        ('B', CPU0, 7, 'DeleteVariable', 0), ('E', CPU0, 7, 'DeleteVariable', 10),
        ('B', CPU0, 7, 'unfinished', 100), ('E', CPU0, 7, 'never started', 100),
        ('B', OPERATOR, 7, 'Convolution', 100), ('E', OPERATOR, 7, 'Convolution', 200))
    assert read(path) == [Event('cpu(0)', 'forward', 0, 3, 'Convolution'),
                          Event('cpu(1)', 'forward', 1, 3, 'Convolution'),
                          Event('cpu(0)', 'backward', 5, 2, '_backward_relu'),
                          Event('cpu(0)', 'backward', 5.5, 0.5, '_backward_relu')]


def test_read_infers_phases_from_the_order_on_the_device_not_in_the_file(write_trace):
    rows = [(ts, pid, name) for pid in (CPU0, CPU1) for ts, name in enumerate((
        'CopyCPU2CPU', 'ImperativeBulk', '_npx_relu,Pooling', '_backward_relu', 'ImperativeBulk',
        'CopyCPU2CPU', '_npi_add', '_npi_multiply_scalar', '_npi_subtract'))]
    path = write_trace(*((letter, pid, pid, name, ts + (letter == 'E'))
                         for ts, pid, name in reversed(rows) for letter in 'BE'))
    events = read(path)
    for device in ('cpu(0)', 'cpu(1)'):
        assert [e.phase for e in events if e.device == device] == [
            'other', 'forward', 'forward', 'backward', 'backward', 'allreduce', 'allreduce', 'update', 'update']


def test_read_assigns_copies_to_pinned_memory_to_the_cpu_context_of_their_thread(write_trace):
    threads = (CPU1, 8), (PINNED, 8), (PINNED, 9)
    path = write_trace(*((letter, pid, tid, 'CopyCPU2CPU', ts) for pid, tid in threads
                         for letter, ts in (('B', tid), ('E', tid + 1))))
    assert [e.device for e in read(path)] == ['cpu(1)', 'cpu(1)', 'cpu pinned']


@pytest.mark.parametrize('names, phases', [
    # An array of ones may be set before the forward pass, and the loss computed after its gradient
    (('SetValueOp', '_npx_relu', '_backward_relu', 'pick,_npi_multiply_scalar', 'CopyCPU2CPU', '_npi_subtract'),
     ('backward', 'forward', 'backward', 'forward', 'allreduce', 'update')),
    # A backward pass without names begins with the array of ones
    (('ImperativeBulk', 'SetValueOp', 'ImperativeBulk', 'log_softmax', 'CopyCPU2CPU', '_npi_subtract'),
     ('forward', 'backward', 'backward', 'forward', 'allreduce', 'update')),
    # Before backward, the same operators are those of the network
    (('_npi_add', '_npi_multiply_scalar', 'CopyCPU2GPU', '_backward_add', '_npi_add', '_npi_multiply_scalar',
      'CopyGPU2GPU', 'ElementwiseSum', 'KVStoreReduce'),
     ('forward', 'forward', 'other', 'backward', 'allreduce', 'update', 'allreduce', 'allreduce', 'allreduce')),
    (('Activation,Convolution,_npi_add', '_backward_BatchNorm,add_n,_backward_Activation', '_npi_add,BatchNorm'),
     ('forward', 'backward', 'forward')),
    (('multi_sgd_update', 'sgd_mom_update', 'adam_update', 'mp_lamb_update_phase2'), ('update',) * 4),
    (('negative{name=node_67_backward;}]', '_npi_subtract{a=(1, 2)}'), ('backward', 'update')),  # MXNet 2
])
def test_phases(names, phases):
    assert tuple(infer_phases(names)) == phases and {*phases} <= {*COLORS}


@pytest.mark.parametrize('content', [b'', b'no trace', b'[]', b'{}', b'{"traceEvents": 1}',
                                     b'{"traceEvents": [{"a": 1}]}', b'\xff\xfe', b'[' * 100_000])
def test_other_files_are_rejected(content, tmp_path):
    path = tmp_path / 'x.json'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'^.*x\.json is not a Chrome trace'):
        read(path)


def test_a_trace_without_devices_is_rejected(write_trace):
    path = write_trace(('B', OPERATOR, 1, 'Convolution', 0), ('E', OPERATOR, 1, 'Convolution', 1))
    with pytest.raises(ValueError, match='contains no operation on a device'):
        read(path)
