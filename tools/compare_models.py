"""Compare saved ONNX models with saved results, in this Python's onnxruntime; see tools/test_onnxruntime.sh."""
import sys
from pathlib import Path

import numpy
import onnxruntime

TOLERANCE = 1e-5  # of the largest number in an output, as in gluon_mgpu/programs/onnx/results.py


def difference(model, arrays):
    """Return the largest difference of a model's results, in units of the largest number in each output."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, not also printed
    session = onnxruntime.InferenceSession(model, options, providers=['CPUExecutionProvider'])
    feeds = {each.name: arrays[f'input{i}'] for i, each in enumerate(session.get_inputs())}
    session.run(None, feeds)  # versions 1.15 to 1.18 may be wrong from the second call on
    found = session.run(None, feeds)
    largest = 0.0
    for i, Y_found in enumerate(found):
        Y = arrays[f'output{i}']
        if (Y.shape, Y.dtype) != (Y_found.shape, Y_found.dtype):
            return numpy.inf
        scale = abs(Y.astype('float64')).max(initial=1e-30)
        largest = max(largest, abs(Y_found.astype('float64') - Y).max(initial=0) / scale)
    return largest


def main(folder):
    paths = sorted(Path(folder).glob('*.onnx'))
    wrong = 0
    for path in paths:
        with numpy.load(path.with_suffix('.npz')) as arrays:
            try:
                result = difference(str(path), arrays)
            except Exception as error:
                result = ' '.join(str(error).split())
            if not isinstance(result, float) or not result <= TOLERANCE:
                wrong += 1
                print(f"{arrays['test']}: {result}")
    print(f'onnxruntime {onnxruntime.__version__}: {len(paths) - wrong} of {len(paths)} models are equal to MXNet')
    return int(wrong > 0 or not paths)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]))
