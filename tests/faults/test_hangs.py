"""No combination of settings and devices hangs: each run ends in time, or is rejected with one line."""
import itertools
import os
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import idx_files
import pytest
from runs import run

pytestmark = pytest.mark.slow
SETTINGS = {
    'OMP_NUM_THREADS': (None, '1', '2', '4', 'many'),
    'MXNET_CPU_TEMP_COPY': (None, '1', '4', '512'),
    'MXNET_ENGINE_TYPE': (None, 'NaiveEngine', 'ThreadedEngine', 'ThreadedEnginePerDevice'),
    'MXNET_CPU_WORKER_NTHREADS': (None, '1', '4'),
    'MXNET_EXEC_BULK_EXEC_TRAIN': (None, '0', '1'),
    'MXNET_UPDATE_ON_KVSTORE': (None, '0', '1'),
    'MXNET_CPU_PARALLEL_RAND_COPY': (None, '4'),
    'MXNET_MKLDNN_ENABLED': (None, '0'),
    'MXNET_USE_OPERATOR_TUNING': (None, '0'),
}
DEVICES = ('cpu:0', 'cpu:0,cpu:1', 'cpu:1,cpu:0', 'cpu:0-3', 'cpu:5,cpu:2,cpu:9', 'cpu:all')
# Call `train` from Python, without the command line
API = ('import sys; import gluon_mgpu; from gluon_mgpu import {chapter}; from gluon_mgpu.data import load_data; '
       'from gluon_mgpu.devices import parse_devices; devices = parse_devices(sys.argv[1]); '
       'data = load_data("mnist", 16, sys.argv[2]); '
       '{chapter}.train(len(devices), 16, 0.1, num_epochs=1, devices=devices, data=data)')
ALWAYS_TESTED = [  # combinations that have hung before, or in which devices share the most
    ({'OMP_NUM_THREADS': '2'}, 'cpu:0,cpu:1', 'scratch'),
    ({'MXNET_CPU_TEMP_COPY': '1', 'MXNET_UPDATE_ON_KVSTORE': '0'}, 'cpu:0-3', 'concise'),
    ({'MXNET_ENGINE_TYPE': 'ThreadedEngine', 'MXNET_CPU_TEMP_COPY': '1'}, 'cpu:0-3', 'scratch'),
]


def test_no_combination_hangs(long, seed, tmp_path, count):
    idx_files.write(tmp_path / 'mnist', idx_files.dataset(41, 9))
    cases = list(ALWAYS_TESTED)
    if long:
        rng = random.Random(seed)
        cases += [({name: rng.choice(values) for name, values in SETTINGS.items()}, rng.choice(DEVICES), chapter)
                  for _, chapter in itertools.product(range(40), ('scratch', 'concise'))]

    def train(settings, devices, chapter):
        env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        env.update({name: value for name, value in settings.items() if value is not None})
        return run([sys.executable, '-c', API.format(chapter=chapter), devices, tmp_path],
                   timeout=60, env=env)  # raises TimeoutExpired

    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(train, *zip(*cases)))
    for case, done in zip(cases, runs):
        rejected = re.search(r'Error: \d+ threads of OpenMP with \d CPU contexts hang', done.stderr)
        assert rejected if done.returncode else 'test acc: ' in done.stdout, (case, done.stderr)
        count('random settings and devices: rejected with one line' if rejected else
              'random settings and devices: ended in time')
