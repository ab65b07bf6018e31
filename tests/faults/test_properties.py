"""Properties that must hold for any input, tested on inputs that Hypothesis generates."""
import gzip
import re
import struct
import tempfile
from pathlib import Path

import faults_of_files
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays_of

from gluon_mgpu.checkpoints import checkpoint
from gluon_mgpu.data import idx
from gluon_mgpu.devices import parse_devices

CHECK = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)


@CHECK
@given(text=st.one_of(st.text(max_size=20), st.text('cpugal:,-0123456789 ', max_size=20)))
def test_any_text_is_a_list_of_devices_or_rejected_with_one_line(text):
    try:
        devices = parse_devices(text)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert len(set(devices)) == len(devices) >= 1


@CHECK
@given(content=st.binary(max_size=400), magic=st.booleans(), pack=st.booleans())
def test_any_bytes_are_an_idx_file_or_rejected_with_one_line(content, magic, pack):
    content = struct.pack('>I', 2049) + content if magic else content
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'labels'
        path.write_bytes(gzip.compress(content) if pack else content)
        try:
            labels = idx.read_labels(path)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert struct.pack('>2I', 2049, len(labels)) + bytes(labels.tolist()) == content


NAMES = st.text(min_size=1, max_size=12)
ARRAYS = arrays_of.arrays(st.sampled_from(['float16', 'float32', 'float64', 'int32', 'uint8', 'bool']),
                          arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
COPIES = ARRAYS.flatmap(lambda array: st.lists(arrays_of.arrays(array.dtype, array.shape), min_size=1, max_size=3))
JSON = st.recursive(st.none() | st.booleans() | st.integers(-2**63, 2**63) | st.floats(allow_nan=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=9)


@CHECK
@given(parameters=st.dictionaries(NAMES, COPIES, max_size=4),
       metadata=st.dictionaries(st.text(), JSON, max_size=4))
def test_a_checkpoint_is_read_as_it_was_written(parameters, metadata):
    kept = checkpoint.Snapshot({f'parameters/{name}': arrays for name, arrays in parameters.items()},
                               {'parameters': {name: len(arrays) for name, arrays in parameters.items()}})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'a'
        checkpoint.write(path, kept, metadata)
        record, arrays = checkpoint.read(path)
    assert record == {**kept.record, 'metadata': metadata, 'version': checkpoint.VERSION}
    assert arrays.keys() == kept.arrays.keys()
    for name, written in kept.arrays.items():
        assert [(a.dtype, a.shape, a.tobytes()) for a in arrays[name]] == [
            (a.dtype, a.shape, a.tobytes()) for a in written]


@CHECK
@given(data=st.data())
def test_any_bytes_are_a_checkpoint_or_rejected_with_one_line(data):
    """Any part of a checkpoint is replaced by random bytes, with or without a matching checksum."""
    whole = faults_of_files.valid_checkpoint()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    content = whole[:start] + data.draw(st.binary(max_size=30)) + whole[end:]
    content = faults_of_files.with_checksum(content) if data.draw(st.booleans()) else content
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'a'
        path.write_bytes(content)
        try:
            record, _ = checkpoint.read(path)
        except checkpoint.CheckpointError as error:
            assert re.fullmatch(rf'{path}: .+', str(error)) and len(str(error).splitlines()) == 1
        else:
            assert isinstance(record['metadata'], dict)
