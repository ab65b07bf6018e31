"""The blocks of docs/other-chapters.md, with small networks, compared with plain Gluon on one device in float64."""
import re
from functools import partial
from pathlib import Path

import book_steps
import pytest
from book_steps import ADAM, CHAPTERS, as_mxnet, parameters_of, plain, started
from docs_code import blocks
from equals_one import equals_one

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, autograd, gluon, np

PAGE = (Path(__file__).parents[1] / 'docs' / 'other-chapters.md').read_text()
BLOCKS = blocks(PAGE)
# The tests have initialized the networks, with numbers that do not depend on the devices
pytestmark = pytest.mark.filterwarnings('ignore:Parameter .* is already initialized')


@pytest.fixture(params=[1, 3])
def several(request, device_list):
    """One or three devices."""
    return device_list(request.param)


def names_on(devices, **others):
    """Return the names that the page imports, and others of the book."""
    found: dict = {}
    exec(BLOCKS['imports'], found)
    assert len(found['devices']) >= 1
    return {**found, 'devices': devices, 'num_epochs': 2, 'loss': gluon.loss.SoftmaxCELoss(), **others}


def batches(name, rng):
    return [tuple(map(as_mxnet, CHAPTERS[name].batch(rng, rows))) for rows in (7, 2, 6, 1)]


def train_plainly(net, data, *settings):
    """Train for two epochs with nothing but Gluon."""
    _, trainer = plain(net, *settings)
    for X, y in data * 2:
        with autograd.record():
            l = book_steps.cross_entropy(net(X), y)
        l.backward()
        trainer.step(len(y))


def train_chapter(devices, rng, name):
    """Train with plain Gluon."""
    state = CHAPTERS[name].make(plain, devices)
    for X, y in batches(name, rng):
        CHAPTERS[name].step(state, X, y, devices)
    yield parameters_of(state)


def test_all_blocks_are_tested():
    code = re.findall(r'\n\n((?:    .*\n)+)', re.sub(r'<!-- .* -->\n\n(?:    .*\n|\n)+', '\n\n', PAGE))
    assert code == []
    assert list(BLOCKS) == ['imports', 'train_ch13', 'fine-tuning', 'BERT', 'GAN', 'embeddings', 'check']


def test_train_ch13(several, capsys):
    """With tuples of inputs."""
    def program(devices, rng, exec_page):
        net, data = started(book_steps.Attention(), devices), batches('attention', rng)
        if exec_page:
            exec(BLOCKS['train_ch13'], names_on(devices, net=net, train_iter=data, test_iter=data))
        else:
            train_plainly(net, data, 'adam', {'learning_rate': 0.001})
        yield net

    equals_one(partial(program, exec_page=True), several, one=partial(program, exec_page=False))
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has other functions of networks instead')
def test_fine_tuning(several, capsys):
    def program(devices, rng):
        data = batches('fine-tuning', rng)
        names = names_on(devices, net=started(book_steps.FineTuned(), devices[:1]), train_iter=data, test_iter=data)
        exec(BLOCKS['fine-tuning'], names)
        yield names['net']

    def by_gluon(devices, rng):
        net, data = started(book_steps.FineTuned(), devices), batches('fine-tuning', rng)
        net.output.collect_params().setattr('lr_mult', 10)
        for grad_req in ('null', 'write'):
            net.features.collect_params().setattr('grad_req', grad_req)
            train_plainly(net, data, 'sgd', {'learning_rate': 0.01, 'wd': 0.001})
        yield net

    equals_one(program, several, by_gluon)


class BERT(book_steps.BERT):
    """Returns the encoded words as well, as d2l.BERTModel."""

    def forward(self, *args):
        return None, *super().forward(*args)


def test_bert_and_the_check(several):
    def program(devices, rng):
        net, trainer = plain(started(BERT(), devices), *ADAM)
        train_iter = [(*X, *y) for X, y in batches('BERT', rng)]
        names = names_on(devices, net=net, trainer=trainer, train_iter=train_iter, vocab_size=book_steps.VOCAB)
        exec(BLOCKS['BERT'], names)
        yield parameters_of(net)
        names.update(make_net=BERT, batch=[array.repeat(3, axis=0) for array in train_iter[0]])
        exec(BLOCKS['check'], names)
        wrong = BLOCKS['BERT'].replace('mlm_l.sum() / num_words', 'mlm_l.sum() / weights.sum()').partition('\nfor ')[0]
        with pytest.raises(AssertionError, match='WRONG'):
            exec(wrong + BLOCKS['check'], names)

    equals_one(program, several, partial(train_chapter, name='BERT'))


def test_gan(several):
    def program(devices, rng):
        state, names = CHAPTERS['GAN'].make(plain, devices), names_on(devices, loss=book_steps.binary)
        exec(BLOCKS['GAN'], names)
        for X, Z in batches('GAN', rng):
            names['train_batch'](state, X, Z, devices)
        yield parameters_of(state)

    equals_one(program, several, partial(train_chapter, name='GAN'))


def test_embeddings(several):
    def program(devices, rng):
        net = started(book_steps.BiRNN(), devices)
        names = names_on(devices, net=net, embeds=np.arange(36).reshape(9, 4) / 36)
        # MXNet 2 would initialize the LSTM anew
        exec(BLOCKS['embeddings'].replace('net.initialize(init.Xavier(), ctx=devices)\n', ''), names)
        for X, y in batches('BiRNN', rng):
            names['train_batch_ch13'](net, X, y, names['loss'], names['trainer'], devices)
        yield parameters_of(net)

    equals_one(program, several, partial(train_chapter, name='BiRNN'))
