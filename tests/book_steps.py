"""Training steps of the book's chapters, small and in our own words, for any number of devices.

Each chapter has `make(way, devices)`, which returns networks and Trainers; `step(state, X, y, devices)`; and
`batch(rng, rows)`. A `way` is `plain` or `as_one`. `WRONG` has the steps with mistakes, most of them the book's.
"""
from __future__ import annotations

import unittest.mock
from functools import partial
from typing import NamedTuple

from equals_one import same

from gluon_mgpu.ch13 import train_batch_ch13
from gluon_mgpu.mxnet_setup.compat import HybridBlock, autograd, gluon, init, np, npx
from gluon_mgpu.parallel.split import split_batch
from gluon_mgpu.parallel.step import gradients, prepare_idle_devices
from gluon_mgpu.programs.check.contents import find_all

nn = gluon.nn
SGD, ADAM = ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}), ('adam', {'learning_rate': 0.01})
VOCAB, H, T = 9, 4, 5  # words, numbers per word, words per sentence
cross_entropy, l1 = gluon.loss.SoftmaxCELoss(), gluon.loss.L1Loss()
binary = gluon.loss.SigmoidBCELoss()


def plain(net, optimizer, settings, **of_trainer):
    params = [param for param in net.collect_params().values() if param.grad_req != 'null']
    return net, gluon.Trainer(params, optimizer, settings, **of_trainer)


def as_one(net, *settings, **of_trainer):
    """Run a network that can be hybridized as one operator."""
    if isinstance(net, gluon.HybridBlock):
        net.hybridize()
    return plain(net, *settings, **of_trainer)


def started(net, devices, *inputs):
    """Initialize a network whose shapes `inputs` of one row decide; in float64."""
    net.initialize(init.Normal(0.5), ctx=devices)
    for device in devices if inputs else ():
        net(*(np.zeros((1, *shape), ctx=device) for shape in inputs))
    net.cast('float64')
    return net


def layers(*args):
    net = nn.HybridSequential()
    net.add(*args)
    return net


def step_of(losses, nets, trainers, shards, devices, rows, divisor=None):
    """Compute the gradients of `losses` of the shards on each device, and take a step with each Trainer."""
    with autograd.record():
        ls = [losses(*shard) for shard in zip(*shards)]
    autograd.backward(ls)
    for net in nets:
        prepare_idle_devices(net, np.zeros(rows), devices)
    for trainer in trainers:
        trainer.step(rows if divisor is None else divisor, ignore_stale_grad=True)


def parameters_of(state):
    """Return the parameters in the state of a chapter, which must be the same on all devices."""
    return [same(param.list_data()) for _, param in find_all(state, gluon.Parameter)]


def split_batch_multi_inputs(X, y, devices):
    """D2L 16.5. Some shards of a small batch have no rows."""
    *X_shards, y_shards = (gluon.utils.split_and_load(array, devices, even_split=False) for array in (*X, y))
    return list(zip(*X_shards)), y_shards


def as_mxnet(data):
    return tuple(map(as_mxnet, data)) if isinstance(data, tuple) else np.array(data, dtype=data.dtype)


def words(rng, rows, *shape):
    return rng.integers(0, VOCAB, (rows, *shape)).astype('int32')


# --- computer vision ---

def step_ch13(state, X, y, devices, loss=cross_entropy):
    net, trainer = state
    train_batch_ch13(net, X, y, loss, trainer, devices)


def images(rng, rows):
    return rng.normal(size=(rows, 2, 6, 6)), rng.integers(0, 3, rows)


class FineTuned(HybridBlock):
    """Like a network of the model zoo."""

    def __init__(self):
        super().__init__()
        self.features = layers(nn.Conv2D(3, 3, in_channels=2, activation='relu'), nn.GlobalAvgPool2D(), nn.Flatten())
        self.output = nn.Dense(3, in_units=3)

    def forward(self, X):
        return self.output(self.features(X))


def freeze(block, grad_req='null'):
    for param in block.collect_params().values():
        param.grad_req = grad_req


def make_fine_tuning(way, devices, frozen=False):
    net = started(FineTuned(), devices)
    if frozen:
        freeze(net.features)
    for param in net.output.collect_params().values():
        param.lr_mult = 10
    return [net, *way(net, *SGD), 1]


def step_of_fine_tuning(state, X, y, devices, head_only=3):
    """Every third step trains the head only."""
    block, net, trainer, number = state
    freeze(block.features, 'write' if number % head_only else 'null')
    train_batch_ch13(net, X, y, cross_entropy, trainer, devices)
    state[3] += 1


def make_fcn(way, devices):
    net = layers(nn.Conv2D(3, 3, strides=2, padding=1), nn.Conv2D(3, 1), nn.Conv2DTranspose(3, 4, 2, 1))
    return way(started(net, devices, (2, 6, 4)), *SGD)


def step_of_fcn(state, X, y, devices):
    train_batch_ch13(state[0], X, y, gluon.loss.SoftmaxCELoss(axis=1), state[1], devices)


def pixels(rng, rows):
    return rng.normal(size=(rows, 2, 6, 4)), rng.integers(0, 3, (rows, 6, 4))


class SSD(nn.Block):
    """Classes and offsets of the boxes at each of two scales."""

    def __init__(self):
        super().__init__()
        self.base, self.second = nn.Conv2D(3, 3, in_channels=2, activation='relu'), nn.MaxPool2D(2)
        self.classes, self.boxes = (nn.Conv2D(n, 1, in_channels=3) for n in (3, 4))

    def forward(self, X):
        first = self.base(X)
        scales = [first, self.second(first)]
        return [np.concatenate([layer(X).transpose(0, 2, 3, 1).reshape(len(X), -1, n) for X in scales], axis=1)
                for layer, n in ((self.classes, 3), (self.boxes, 4))]  # (n, 20, 3), (n, 20, 4)


def make_ssd(way, devices):
    return way(started(SSD(), devices), *SGD)


def step_of_ssd(state, X, y, devices):
    net, trainer = state
    X_shards, y_shards = split_batch(X, y, devices)

    def losses(X, y):
        classes, boxes = net(X)
        of_class, offsets, masks = y
        return cross_entropy(classes, of_class) + l1(boxes * masks, offsets * masks)

    step_of(losses, [net], [trainer], [X_shards, y_shards], devices, len(X))


def boxes(rng, rows):
    return rng.normal(size=(rows, 2, 6, 6)), (rng.integers(0, 3, (rows, 20)), rng.normal(size=(rows, 20, 4)),
                                              rng.integers(0, 2, (rows, 20, 1)).astype('float64'))


# --- language ---

class BiRNN(nn.Block):
    """The book's: the LSTM creates its states."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, H)
        self.encoder = gluon.rnn.LSTM(3, bidirectional=True, input_size=H)
        self.decoder = nn.Dense(2, in_units=12)

    def forward(self, X):
        outputs = self.encoder(self.embedding(X.T))
        return self.decoder(np.concatenate((outputs[0], outputs[-1]), axis=1))


def make_sentiment(block, frozen):
    def make(way, devices):
        net = started(block(), devices)
        embedding = getattr(net, frozen)
        embedding.weight.set_data(np.arange(VOCAB * H).reshape(VOCAB, H) / 36)  # before the Trainer is made
        freeze(embedding)
        return way(net, *ADAM)
    return make


def reviews(rng, rows):
    return words(rng, rows, T), rng.integers(0, 2, rows)


class Attention(nn.Block):
    """Decomposable attention: attend, compare, aggregate."""

    def __init__(self):
        super().__init__()
        self.embedding, self.f = nn.Embedding(VOCAB, H), nn.Dense(3, in_units=H, flatten=False, activation='relu')
        self.g, self.h = nn.Dense(3, in_units=2 * H, flatten=False, activation='relu'), nn.Dense(3, in_units=6)

    def forward(self, X):
        A, B = map(self.embedding, X)
        e = npx.batch_dot(self.f(A), self.f(B), transpose_b=True)
        pairs = (A, npx.batch_dot(npx.softmax(e), B)), (B, npx.batch_dot(npx.softmax(e.transpose(0, 2, 1)), A))
        return self.h(np.concatenate([self.g(np.concatenate(pair, axis=2)).sum(axis=1) for pair in pairs], axis=1))


def make_attention(way, devices):
    net = started(Attention(), devices)
    net.embedding.weight.set_data(np.arange(VOCAB * H).reshape(VOCAB, H) / 36)
    return way(net, *ADAM)


def sentence_pairs(rng, rows):
    return (words(rng, rows, T), words(rng, rows, T - 1)), rng.integers(0, 3, rows)


class BERT(nn.Block):
    """One layer of attention, and the two tasks of pre-training."""

    def __init__(self):
        super().__init__()
        self.token, self.segment = nn.Embedding(VOCAB, H), nn.Embedding(2, H)
        self.encoder = nn.Dense(H, in_units=H, flatten=False, activation='tanh')
        self.mlm, self.nsp = nn.Dense(VOCAB, in_units=H, flatten=False), nn.Dense(2, in_units=H)

    def encode(self, tokens, segments, valid_lens):
        X = self.token(tokens) + self.segment(segments)
        scores = npx.batch_dot(X, X, transpose_b=True)  # (n, T, T)
        scores = npx.sequence_mask(scores.transpose(0, 2, 1), valid_lens, True, value=-1e6, axis=1).transpose(0, 2, 1)
        return self.encoder(npx.batch_dot(npx.softmax(scores), X))

    def forward(self, tokens, segments, valid_lens, positions):
        X = self.encode(tokens, segments, valid_lens)
        masked = npx.batch_dot(npx.one_hot(positions, T).astype(X.dtype), X)  # (n, 2, H)
        return self.mlm(masked), self.nsp(X[:, 0, :])


def make_bert(way, devices):
    return way(started(BERT(), devices), *ADAM)


def step_of_bert(state, X, y, devices, total_of=None):
    """Pre-training. The mean over the masked words has one divisor, counted before the split."""
    net, trainer = state
    total, rows = float(X[4].sum()) + 1e-8, len(X[0])

    def losses(X, y):
        *inputs, weights = X
        words, is_next = y
        mlm, nsp = net(*inputs)
        divisor, size = (total, rows) if total_of is None else total_of(weights, is_next)
        mlm_l = cross_entropy(mlm.reshape(-1, VOCAB), words.reshape(-1), weights.reshape(-1, 1))
        return mlm_l.sum() / divisor + cross_entropy(nsp, is_next).sum() / size

    step_of(losses, [net], [trainer], split_batch(X, y, devices), devices, rows, 1)


def masked_sentences(rng, rows):
    weights = rng.integers(0, 2, (rows, 2)).astype('float64')
    weights[0] = 1
    return ((words(rng, rows, T), rng.integers(0, 2, (rows, T)).astype('int32'),
             rng.integers(2, T + 1, rows).astype('float64'), rng.integers(0, T, (rows, 2)).astype('int32'), weights),
            (words(rng, rows, 2), rng.integers(0, 2, rows).astype('int32')))


class Seq2Seq(nn.Block):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, H), nn.Embedding(VOCAB, H)
        self.encoder, self.decoder = (gluon.rnn.GRU(3, input_size=size) for size in (H, H + 3))
        self.dense = nn.Dense(VOCAB, in_units=3, flatten=False)

    def forward(self, X, Y):
        _, state = self.encoder(self.source(X.T), self.encoder.begin_state(len(X), ctx=X.ctx, dtype='float64'))
        context = np.broadcast_to(state[0][-1:], (T, len(X), 3))
        outputs, _ = self.decoder(np.concatenate((self.target(Y.T), context), axis=2), state)
        return self.dense(outputs).swapaxes(0, 1)


def make_seq2seq(way, devices):
    return way(started(Seq2Seq(), devices), *ADAM, update_on_kvstore=False)


def step_of_seq2seq(state, X, y, devices, clip_shards=False, num_tokens=None, limit=0.1):
    """The sum of the gradients is clipped, and divided by the words of the whole batch."""
    net, trainer = state
    shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [of_words(net(source, target), labels, valid) for (source, target), (labels, valid) in zip(*shards)]
    autograd.backward(ls)
    prepare_idle_devices(net, X, devices)
    if clip_shards:
        for device in devices:
            clip(gradients(net, [device]), gradients(net, [device]), limit)
    trainer.allreduce_grads()
    if not clip_shards:
        clip(gradients(net, devices[:1]), gradients(net, devices), limit)
    trainer.update(float(y[1].sum()) if num_tokens is None else num_tokens(shards[1]))


def of_words(scores, labels, valid):
    """Cross-entropy of the words before the end of each sentence."""
    weights = npx.sequence_mask(np.ones_like(labels, dtype='float64')[:, :, None], valid, True, axis=1)
    return cross_entropy(scores, labels, weights)


def clip(of, grads, limit):
    norm = sum((g ** 2).sum() for g in of) ** 0.5
    scale = min(limit / norm.item(), 1) if norm.item() else 1
    for g in grads:
        g *= scale


def translations(rng, rows):
    valid_lens = rng.integers(1, T + 1, rows).astype('float64')
    return (words(rng, rows, T), words(rng, rows, T)), (words(rng, rows, T), valid_lens)


class Model(nn.Block):
    """A language model, whose states are passed."""

    def __init__(self):
        super().__init__()
        self.rnn, self.dense = gluon.rnn.RNN(3, input_size=VOCAB), nn.Dense(VOCAB, in_units=3)

    def forward(self, X, state):
        outputs, [state] = self.rnn(npx.one_hot(X.T, VOCAB).astype('float64'), [state])
        return self.dense(outputs.reshape(-1, 3)), state


def make_model(way, devices):
    net, trainer = way(started(Model(), devices), *SGD)
    return {'net': net, 'trainer': trainer, 'states': []}


def step_of_model(state, X, y, devices):
    """The states of the batch before continue, if it has as many rows; without their history."""
    net, (X_shards, y_shards) = state['net'], split_batch(X, y, devices)
    states, state['states'] = state['states'], []
    if [len(X) for X in X_shards] != [h.shape[1] for h in states]:
        states = [np.zeros((1, len(X), 3), ctx=X.ctx, dtype='float64') for X in X_shards]

    def losses(X, y, h):
        y_hat, h = net(X, h)
        state['states'].append(h.detach())
        return cross_entropy(y_hat, y.T.reshape(-1)).reshape(T, -1).mean(axis=0)

    step_of(losses, [net], [state['trainer']], [X_shards, y_shards, states], devices, len(y))


def texts(rng, rows):
    text = words(rng, rows, T + 1)
    return text[:, :-1], text[:, 1:]


# --- two networks, recommender systems ---

def make_gan(way, devices):
    G = started(layers(nn.Dense(4, in_units=2, activation='tanh'), nn.Dense(3, in_units=4)), devices)
    D = started(layers(nn.Dense(4, in_units=3, activation='tanh'), nn.Dense(1, in_units=4)), devices)
    return way(G, *ADAM), way(D, *ADAM)


def step_of_gan(state, X, y, devices):
    """Train D, then G; the noise is an input, so that it does not depend on the devices."""
    (G, of_G), (D, of_D) = state
    X_shards, Z_shards = split_batch(X, y, devices)

    def real(scores):
        return binary(scores, np.ones_like(scores))

    def fake(scores):
        return binary(scores, np.zeros_like(scores))

    step_of(lambda X, Z: (real(D(X)) + fake(D(G(Z).detach()))) / 2, [D], [of_D], [X_shards, Z_shards], devices, len(X))
    step_of(lambda Z: real(D(G(Z))), [G], [of_G], [Z_shards], devices, len(X))


def points(rng, rows):
    return rng.normal(size=(rows, 3)), rng.normal(size=(rows, 2))


def make_neumf(way, devices):
    return way(started(NeuMF(), devices), *ADAM)


def step_of_ranking(state, X, y, devices, over_rows=np.sum):
    """NeuMF and Caser: the network is called twice, for an item that the user likes and another."""
    net, trainer = state
    X_shards, y_shards = split_batch(X, y, devices)

    def losses(X, others):
        *inputs, item = X
        return -over_rows(np.log(npx.sigmoid(net(*inputs, item) - net(*inputs, others))), axis=0)

    step_of(losses, [net], [trainer], [X_shards, y_shards], devices, len(y))


class NeuMF(nn.Block):
    def __init__(self):
        super().__init__()
        self.P, self.Q, self.U, self.V = (nn.Embedding(VOCAB, H) for _ in range(4))
        self.mlp, self.out = nn.Dense(3, in_units=2 * H, activation='relu'), nn.Dense(1, in_units=H + 3, use_bias=False)

    def forward(self, user, item):
        mlp = self.mlp(np.concatenate([self.U(user), self.V(item)], axis=1))
        return self.out(np.concatenate([self.P(user) * self.Q(item), mlp], axis=1))


def pairs(rng, rows):
    return (words(rng, rows), words(rng, rows)), words(rng, rows)


class Chapter(NamedTuple):
    make: object
    step: object
    batch: object


CHAPTERS = {
    'fine-tuning': Chapter(make_fine_tuning, step_of_fine_tuning, images),
    'fine-tuning, the head only': Chapter(partial(make_fine_tuning, frozen=True), partial(
        step_of_fine_tuning, head_only=1), images),
    'FCN': Chapter(make_fcn, step_of_fcn, pixels),
    'SSD': Chapter(make_ssd, step_of_ssd, boxes),
    'BiRNN': Chapter(make_sentiment(BiRNN, 'embedding'), step_ch13, reviews),
    'attention': Chapter(make_attention, step_ch13, sentence_pairs),
    'BERT': Chapter(make_bert, step_of_bert, masked_sentences),
    'seq2seq': Chapter(make_seq2seq, step_of_seq2seq, translations),
    'language model': Chapter(make_model, step_of_model, texts),
    'GAN': Chapter(make_gan, step_of_gan, points),
    'NeuMF': Chapter(make_neumf, step_of_ranking, pairs),
}


def with_old_gradients(step):
    def wrong(*args):
        with unittest.mock.patch.dict(globals(), prepare_idle_devices=lambda *args: None):
            step(*args)
    return wrong


UNKNOWN = 'The cause is unknown'
NO_MEANS = 'sum the losses on each device and the gradients over all devices, without means'
WRONG = {  # the chapter, its step with a mistake, most of them the book's, and words of the report
    "BERT: divided by a shard's weights": ('BERT', partial(step_of_bert, total_of=lambda weights, is_next: (
        weights.sum() + 1e-8, len(is_next))), UNKNOWN),
    'seq2seq: clipped before the sum': ('seq2seq', partial(step_of_seq2seq, clip_shards=True), UNKNOWN),
    "seq2seq: divided by a shard's words": ('seq2seq', partial(
        step_of_seq2seq, num_tokens=lambda shards: float(shards[0][1].sum()), limit=1e9), UNKNOWN),
    'NeuMF: the mean over a shard': ('NeuMF', partial(step_of_ranking, over_rows=np.mean), NO_MEANS),
    'GAN: gradients of the generator': ('GAN', with_old_gradients(step_of_gan),
                                        'set the gradients of devices without rows, and of layers that a batch'),
}
