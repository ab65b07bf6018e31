"""Learning rates that change from step to step."""
from functools import partial

import numpy
import pytest
from docs_code import loop_on_few_rows
from equals_one import equals_one, started, take_gradients
from trainers import on_each_device

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, np
from gluon_mgpu.training import schedules
from gluon_mgpu.training.run import Run
from gluon_mgpu.training.schedules import SCHEDULES, schedule


def rates(lr, num_steps, begin=0):
    """Return the rates of the steps of a run that has already done `begin` of them."""
    run, found = Run(1, quiet=True), []
    run.num_steps = begin
    for _ in run.epochs([[]], lr=lr):
        for _ in run.batches([None] * (num_steps - begin)):
            found.append(run.lr)
            run.record_losses([np.zeros(1)])
        run.end_epoch(0.5)
    assert run.history[0].lr == found[-1]
    return found


def test_schedules_by_hand():
    assert rates(schedule('constant', 0.5, 4), 4) == [0.5] * 4
    assert rates(schedule('constant', 0.5, 8, warmup_steps=4), 8) == [0.125, 0.25, 0.375] + [0.5] * 5
    assert rates(schedule('step', 1.0, 8), 8) == pytest.approx([1] * 4 + [0.1] * 2 + [0.01] * 2)
    assert rates(schedule('step', 1.0, 2), 2) == pytest.approx([1, 0.1])
    # (1 + cos(pi n / 4)) / 2 for n = 1, 2, 3
    assert rates(schedule('cosine', 1.0, 3), 3) == pytest.approx([0.8535534, 0.5, 0.1464466])
    assert rates(schedule('cosine', 1.0, 5, warmup_steps=2), 5) == pytest.approx([0.5, 1, 0.8535534, 0.5, 0.1464466])


@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize('num_steps', [1, 2, 3, 1000])
def test_every_rate_is_above_zero_and_at_most_the_given_one(name, num_steps):
    for warmup_steps in {0, num_steps // 2, num_steps - 1}:
        found = rates(schedule(name, 0.3, num_steps, warmup_steps), num_steps)
        assert min(found) > 0 and max(found) <= 0.3


@pytest.mark.parametrize('lr', [
    0.5, lambda step: 1 / step, *(schedule(name, 0.5, 20, 3) for name in SCHEDULES),
    mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0),     # changes itself when it is called
    mx.lr_scheduler.CosineScheduler(5, 0.5, final_lr=0.125)])  # answers differently after step 5
def test_a_resumed_run_has_the_same_rates(lr):
    """Also the second run with the same scheduler."""
    whole = rates(lr, 20)
    for begin in (0, 1, 4, 10, 19):
        assert rates(lr, 20, begin) == whole[begin:]


@pytest.mark.parametrize('lr', [*(schedule(name, 0.5, 20, 3) for name in SCHEDULES),
                                mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=1.0),
                                mx.lr_scheduler.MultiFactorScheduler([4, 9], 0.5, base_lr=1.0)])
def test_rates_that_were_drawn_before(lr):
    """D2L 12.11 draws a schedule before training; MXNet's schedulers then stay at their last rate."""
    drawn = [lr(step) for step in range(1, 21)]
    assert rates(lr, 20) == drawn
    if isinstance(lr, schedules.Steps):
        assert [lr(step) for step in range(1, 21)] == drawn and drawn[-1] <= drawn[3] == 0.5


@pytest.mark.parametrize('name', SCHEDULES)
def test_a_scheduler_means_the_same_as_in_gluon_trainer(name, devices):
    """`trainer.set_learning_rate(run.lr)` before each step, or ``lr_scheduler`` in the Trainer: the same weights."""
    def program(devices, rng, inside):
        net, lr = started(gluon.nn.Dense(1, in_units=1), devices, rng), schedule(name, 0.5, 8, 3)
        settings = {'learning_rate': 0.5, 'lr_scheduler': lr} if inside else {}
        make_trainer = gluon.Trainer if inside else on_each_device
        trainer = make_trainer(net.collect_params(), 'sgd', {**settings, 'momentum': 0.9})
        run = Run(1, quiet=True)
        for _ in run.epochs(net, trainer, lr=lr):
            for _ in run.batches([None] * 8):
                if not inside:
                    trainer.set_learning_rate(run.lr)
                take_gradients(lambda X, y: net(X), [net], numpy.ones((2, 1)), np.zeros(2), devices)
                trainer.step(2)
                run.record_losses([np.zeros(2)])
                yield net
            run.end_epoch(0.5)

    equals_one(partial(program, inside=True), devices, one=partial(program, inside=False))


@pytest.mark.parametrize(('arguments', 'message'), [
    (('cosin', 0.1, 10), "schedule 'cosin': must be one of constant, cosine, step"),
    (('cosine', 0.1, 0), 'num_steps 0: must be an integer of at least 1'),
    (('cosine', 0.1, 10, 11), 'warmup_steps 11: must be an integer from 0 to 10'),
    (('step', -1, 10), 'lr -1: must be a number above 0')])
def test_invalid_schedules(arguments, message):
    with pytest.raises(ValueError, match=message):
        schedule(*arguments)


@pytest.mark.slow
def test_the_loop_of_the_docs(devices, monkeypatch, capsys):
    """As it stands in docs/larger-batches.md, on few rows."""
    code = loop_on_few_rows('larger-batches.md', 'import gluon_mgpu as d2l', 12, monkeypatch)
    assert code.count('\n') <= 25 and ' = 10, 1024\n' in code
    monkeypatch.setattr('gluon_mgpu.try_all_gpus', lambda: devices, raising=False)
    found = {}
    if MXNET_MAJOR >= 2:
        code = code.replace('net.collect_params().zero_grad() ', 'net.zero_grad() ')
    exec(code.replace(' = 10, 1024\n', ' = 3, 10\n'), found)
    assert found['trainer'].optimizer.num_update == 6  # two batches in each of three epochs
    printed = capsys.readouterr().out.splitlines()[-3:]  # MXNet 2 prints a line of its own before
    assert [line.split(':')[0] for line in printed] == ['epoch 1', 'epoch 2', 'epoch 3']


def test_a_run_without_a_rate():
    assert rates(None, 2) == [None, None]


def test_rates_that_mxnet_cannot_read():
    """It reads text as float32, so 0.5 ** 1060 would end the training with an error."""
    def ending(step):
        return {1: 0.5, 2: 1e-320, 3: -0.1}[step]

    found = schedules.rates(ending)
    assert [next(found), next(found)] == [0.5, 0.0]
    with pytest.raises(ValueError, match=r'^the learning rate of update 3, -0.1: must be a number of at least 0'):
        next(found)
    for value in (None, True, '0.5', [0.1]):
        with pytest.raises(ValueError, match='^the learning rate of update 1, .*: must be a number of at least 0'):
            next(schedules.rates(lambda step, value=value: value))
    assert next(schedules.rates(numpy.float32(0.5))) == 0.5
    assert next(schedules.rates(None)) is None and next(schedules.rates(0.5)) == 0.5
