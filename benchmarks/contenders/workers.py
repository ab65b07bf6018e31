"""Contender: this package's chapters with Horovod, one worker with one CPU context per core."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package beside benchmarks/, installed or not

from common import Stopwatch, cpu_seconds, read_job, read_rows
from ours import Timing

from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers, check_horovod
from gluon_mgpu.training.run import Run


def launch(job: dict) -> None:
    """Start this file once per core and print the output of rank 0."""
    check_horovod()
    launcher = Path(sys.executable).with_name('horovodrun')
    hosts = ['-np', str(job['cores']), '-H', f'localhost:{job["cores"]}']
    done = subprocess.run([sys.executable, launcher, '--gloo', *hosts, sys.executable, __file__, json.dumps(job)],
                          stdout=subprocess.PIPE, text=True, check=True)
    print(re.findall(r'\[0\]<stdout>:(.*)', done.stdout)[-1])


def work(job: dict) -> None:
    """Train as one of the workers."""
    images, labels, test_images, test_labels = read_rows(job)
    with HorovodWorkers() as workers:
        train_iter = BatchIterator(images, labels, job['batch_size'], 'rows', shuffle=True, shard=workers.shard)
        test_iter = BatchIterator(test_images, test_labels, job['batch_size'], 'rows', shard=workers.shard)
        watch = Stopwatch(lambda: sum(workers.allgather(cpu_seconds())))  # each worker has its own process group
        run = Run(job['epochs'], quiet=True, callbacks=[Timing(watch)], workers=workers)
        train, sums = {'scratch': (scratch.train, {'allreduce': workers.extend_allreduce(scratch.allreduce)}),
                       'concise': (concise.train, {'Trainer': workers.trainer})}[job['work']]
        train(1, job['batch_size'], job['lr'], devices=[workers.device], data=(train_iter, test_iter), run=run, **sums)
        if workers.rank == 0:
            print(watch.line(job, len(images), run.history[-1].loss, run.history[-1].accuracy), flush=True)


if __name__ == '__main__':
    if 'HOROVOD_RANK' in os.environ:
        work(read_job())
    else:
        launch(read_job())
