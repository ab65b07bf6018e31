"""The blocks of docs/other-chapters.md, with small networks, compared with plain Gluon on one device in float64."""
import re
from pathlib import Path

import book_steps
import numpy
import pytest
from book_steps import ADAM, CHAPTERS, as_mxnet, plain, started
from docs_code import blocks
from equals_one import same

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, mx, np
from gluon_mgpu.programs.check.contents import find_all

PAGE = (Path(__file__).parents[1] / 'docs' / 'other-chapters.md').read_text()
BLOCKS = blocks(PAGE)
# The tests have initialized the networks, with numbers that do not depend on the devices
pytestmark = pytest.mark.filterwarnings('ignore:Parameter .* is already initialized')


@pytest.fixture(params=[1, 3])
def names(request, device_list):
    """The names that the page imports, and others of the book, on one or three devices."""
    found: dict = {}
    exec(BLOCKS['imports'], found)
    assert len(found['devices']) >= 1
    return {**found, 'devices': device_list(request.param), 'num_epochs': 2, 'loss': gluon.loss.SoftmaxCELoss()}


def batches(name, seed):
    rng = numpy.random.default_rng(seed)
    return [tuple(map(as_mxnet, CHAPTERS[name].batch(rng, rows))) for rows in (7, 2, 6, 1)]


def network(block, devices, seed):
    mx.random.seed(seed)
    return started(block(), devices)


def train_plainly(net, data, optimizer, settings, device, num_epochs=1):
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings)
    for X, y in data * num_epochs:
        book_steps.step_of(lambda X, y: book_steps.cross_entropy(net(X), y), net, trainer, X, y, [device], len(y))


def of_chapter(name, device, seed):
    """Return what plain Gluon has trained on one device."""
    mx.random.seed(seed)
    state = CHAPTERS[name].make(plain, [device])
    for X, y in batches(name, seed):
        CHAPTERS[name].step(state, X, y, [device])
    return state


def check_equal(found, expected):
    """Compare parameters, the same on all devices, with those on one."""
    found, expected = ([same(param.list_data()) for _, param in find_all(state, gluon.Parameter)]
                       for state in (found, expected))
    assert len(found) == len(expected) > 0
    for ours, of_one in zip(found, expected):
        numpy.testing.assert_allclose(ours, of_one, rtol=1e-9, atol=1e-12)


def test_all_blocks_are_tested():
    code = re.findall(r'\n\n((?:    .*\n)+)', re.sub(r'<!-- .* -->\n\n(?:    .*\n|\n)+', '\n\n', PAGE))
    assert code == []
    assert list(BLOCKS) == ['imports', 'train_ch13', 'fine-tuning', 'BERT', 'GAN', 'embeddings', 'check']


def test_train_ch13(names, seed, capsys):
    """With tuples of inputs."""
    data, devices = batches('attention', seed), names['devices']
    one = network(book_steps.Attention, devices[:1], seed)
    train_plainly(one, data, 'adam', {'learning_rate': 0.001}, devices[0], 2)
    names.update(net=network(book_steps.Attention, devices, seed), train_iter=data, test_iter=data)
    exec(BLOCKS['train_ch13'], names)
    check_equal(names['net'], one)
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has other functions of networks instead')
def test_fine_tuning(names, seed, capsys):
    data, devices = batches('fine-tuning', seed), names['devices']
    one = network(book_steps.FineTuned, devices[:1], seed)
    one.output.collect_params().setattr('lr_mult', 10)
    for grad_req in ('null', 'write'):
        one.features.collect_params().setattr('grad_req', grad_req)
        params = [param for param in one.collect_params().values() if param.grad_req != 'null']
        net = type('Net', (), {'__call__': lambda self, X: one(X), 'collect_params': lambda self, params=params: {
            param.name: param for param in params}})()
        train_plainly(net, data, 'sgd', {'learning_rate': 0.01, 'wd': 0.001}, devices[0], 2)
    names.update(net=network(book_steps.FineTuned, devices[:1], seed), train_iter=data, test_iter=data)
    exec(BLOCKS['fine-tuning'], names)
    check_equal(names['net'], one)


@pytest.mark.parametrize('trained, num_changed', [(3, 0), (0, 4)])
def test_statistics_of_frozen_batch_norm(trained, num_changed, devices):
    """As the page says: only behind a layer that is trained."""
    net, nn = gluon.nn.HybridSequential(), gluon.nn
    net.add(nn.Conv2D(2, 3, in_channels=1), nn.BatchNorm(in_channels=2), nn.BatchNorm(in_channels=2), nn.Dense(1))
    net.initialize(ctx=devices[0])
    X = np.random.normal(size=(4, 1, 5, 5), ctx=devices[0])
    net(X)
    for number, layer in enumerate(net):
        for param in layer.collect_params().values() if number != trained else ():
            param.grad_req = 'null'
    statistics = [param for layer in (net[1], net[2]) for param in (layer.running_mean, layer.running_var)]
    before = [param.data().asnumpy() for param in statistics]
    with autograd.record():
        l = net(X).sum()
    l.backward()
    assert sum((param.data().asnumpy() != array).any() for param, array in zip(statistics, before)) == num_changed


class BERT(book_steps.BERT):
    """Returns the encoded words as well, as d2l.BERTModel."""

    def forward(self, *args):
        return None, *super().forward(*args)


def test_bert_and_the_check(names, seed):
    data, devices = batches('BERT', seed), names['devices']
    net, trainer = plain(network(BERT, devices, seed), *ADAM)
    names.update(net=net, trainer=trainer, train_iter=[(*X, *y) for X, y in data], vocab_size=book_steps.VOCAB)
    exec(BLOCKS['BERT'], names)
    check_equal(net, of_chapter('BERT', devices[0], seed))
    names.update(make_net=BERT, batch=[array.repeat(3, axis=0) for array in names['train_iter'][0]])
    if len(devices) > 1:
        exec(BLOCKS['check'], names)
        wrong = BLOCKS['BERT'].replace('mlm_l.sum() / num_words', 'mlm_l.sum() / weights.sum()').partition('\nfor ')[0]
        with pytest.raises(AssertionError, match='WRONG'):
            exec(wrong + BLOCKS['check'], names)


def test_gan(names, seed):
    mx.random.seed(seed)
    state = CHAPTERS['GAN'].make(plain, names['devices'])
    names['loss'] = book_steps.binary
    exec(BLOCKS['GAN'], names)
    for X, Z in batches('GAN', seed):
        names['train_batch'](state, X, Z, names['devices'])
    check_equal(state, of_chapter('GAN', names['devices'][0], seed))


def test_embeddings(names, seed):
    embeds, devices = np.arange(36).reshape(9, 4) / 36, names['devices']
    names.update(net=network(book_steps.BiRNN, devices, seed), embeds=embeds)
    # MXNet 2 would initialize the LSTM anew
    exec(BLOCKS['embeddings'].replace('net.initialize(init.Xavier(), ctx=devices)\n', ''), names)
    for X, y in batches('BiRNN', seed):
        names['train_batch_ch13'](names['net'], X, y, names['loss'], names['trainer'], devices)
    check_equal(names['net'], of_chapter('BiRNN', devices[0], seed))
