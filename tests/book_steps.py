"""Training steps of the book's chapters, small and in our own words, for any number of devices.

Each chapter has `make(way, devices)`, which returns networks and Trainers; `step(state, X, y, devices)`; and
`batch(rng, rows)`. A `way` is `plain` or `as_one`. `WRONG` has the steps with mistakes, most of them the book's.
"""
from __future__ import annotations

from functools import partial
from typing import NamedTuple

from equals_one import same, sequential, take_gradients

from gluon_mgpu.ch13 import train_batch_ch13
from gluon_mgpu.mxnet_setup.compat import HybridBlock, gluon, init, np, npx
from gluon_mgpu.parallel.step import gradients, params_with_gradients
from gluon_mgpu.programs.check.contents import find_all

nn = gluon.nn
SGD, ADAM = ('sgd', {'learning_rate': 0.1, 'momentum': 0.9}), ('adam', {'learning_rate': 0.01})
VOCAB, H, T = 9, 4, 5  # words, numbers per word, words per sentence
cross_entropy, l1 = gluon.loss.SoftmaxCELoss(), gluon.loss.L1Loss()
binary = gluon.loss.SigmoidBCELoss()


def plain(net, *settings, **of_trainer):
    return net, gluon.Trainer(params_with_gradients(net), *settings, **of_trainer)


def as_one(net, *settings, **of_trainer):
    """Run a network that can be hybridized as one operator."""
    if isinstance(net, gluon.HybridBlock):
        net.hybridize()
    return plain(net, *settings, **of_trainer)


def started(net, devices, *shapes):
    """Initialize a network in float64; `shapes` of one row of its inputs decide those of its parameters."""
    net.initialize(init.Normal(0.5), ctx=devices)  # not by numbers, because MXNet 2 does not know all shapes yet
    for device in devices if shapes else ():
        net(*(np.zeros((1, *shape), ctx=device) for shape in shapes))
    net.cast('float64')
    return net


def make(block, settings, way, devices, **of_trainer):
    return way(started(block(), devices), *settings, **of_trainer)


def step_of(losses, net, trainer, X, y, devices, divisor, prepared=True):
    """Take a step with ``losses(X_shard, y_shard)``; with a mistake if devices without rows are not `prepared`."""
    take_gradients(losses, [net] * prepared, X, y, devices)
    trainer.step(divisor, ignore_stale_grad=True)


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
        self.features = sequential(
            nn.Conv2D(3, 3, in_channels=2, activation='relu'), nn.GlobalAvgPool2D(), nn.Flatten())
        self.output = nn.Dense(3, in_units=3)

    def forward(self, X):
        return self.output(self.features(X))


def freeze(block, grad_req='null'):
    for param in block.collect_params().values():
        param.grad_req = grad_req


def make_fine_tuning(way, devices, grad_req='write'):
    net = started(FineTuned(), devices)
    freeze(net.features, grad_req)
    for param in net.output.collect_params().values():
        param.lr_mult = 10
    return [*way(net, *SGD), 1]


def step_of_fine_tuning(state, X, y, devices, head_only=3):
    """Every third step trains the head only."""
    net, trainer, number = state
    freeze(net.features, 'write' if number % head_only else 'null')
    step_ch13((net, trainer), X, y, devices)
    state[2] += 1


def make_fcn(way, devices):
    net = sequential(nn.Conv2D(3, 3, strides=2, padding=1), nn.Conv2D(3, 1), nn.Conv2DTranspose(3, 4, 2, 1))
    return way(started(net, devices, (2, 6, 4)), *SGD)


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


def step_of_ssd(state, X, y, devices):
    net, trainer = state

    def losses(X, y):
        classes, boxes = net(X)
        of_class, offsets, masks = y
        return cross_entropy(classes, of_class) + l1(boxes * masks, offsets * masks)

    step_of(losses, net, trainer, X, y, devices, len(X))


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


def make_sentiment(way, devices):
    net = started(BiRNN(), devices)
    net.embedding.weight.set_data(np.arange(VOCAB * H).reshape(VOCAB, H) / 36)  # before the Trainer is made
    freeze(net.embedding)
    return way(net, *ADAM)


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


def sentence_pairs(rng, rows):
    return (words(rng, rows, T), words(rng, rows, T - 1)), rng.integers(0, 3, rows)


class BERT(nn.Block):
    """The two tasks of pre-training."""

    def __init__(self):
        super().__init__()
        self.token, self.segment = nn.Embedding(VOCAB, H), nn.Embedding(2, H)
        self.encoder = nn.Dense(H, in_units=H, flatten=False, activation='tanh')
        self.mlm, self.nsp = nn.Dense(VOCAB, in_units=H, flatten=False), nn.Dense(2, in_units=H)

    def forward(self, tokens, segments, valid_lens, positions):
        X = self.token(tokens) + self.segment(segments)
        X = self.encoder(npx.sequence_mask(X, valid_lens, True, axis=1))
        masked = npx.batch_dot(npx.one_hot(positions, T).astype(X.dtype), X)  # (n, 2, H)
        return self.mlm(masked), self.nsp(X[:, 0, :])


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

    step_of(losses, net, trainer, X, y, devices, 1)


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


def step_of_seq2seq(state, X, y, devices, clip_shards=False):
    """The sum of the gradients is clipped, and divided by the words of the whole batch."""
    net, trainer = state
    take_gradients(lambda X, y: of_words(net(*X), *y), [net], X, y, devices)
    if clip_shards:
        for device in devices:
            clip(gradients(net, [device]), gradients(net, [device]))
    trainer.allreduce_grads()
    if not clip_shards:
        clip(gradients(net, devices[:1]), gradients(net, devices))
    trainer.update(float(y[1].sum()))


def of_words(scores, labels, valid):
    """Cross-entropy of the words before the end of each sentence."""
    weights = npx.sequence_mask(np.ones_like(labels, dtype='float64')[:, :, None], valid, True, axis=1)
    return cross_entropy(scores, labels, weights)


def clip(of, grads):
    norm = sum((g ** 2).sum().item() for g in of) ** 0.5
    for g in grads:
        g *= min(0.1 / (norm or 1), 1)


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
    net, trainer = make(Model, SGD, way, devices)
    return {'net': net, 'trainer': trainer, 'rows': 0, 'states': {}}


def step_of_model(state, X, y, devices):
    """The states of the batch before continue, if it has as many rows; without their history."""
    continues, state['rows'] = state['rows'] == len(y), len(y)

    def losses(X, y):
        h = state['states'][X.ctx] if continues else np.zeros((1, len(X), 3), ctx=X.ctx, dtype='float64')
        y_hat, h = state['net'](X, h)
        state['states'][X.ctx] = h.detach()
        return cross_entropy(y_hat, y.T.reshape(-1)).reshape(T, -1).mean(axis=0)

    step_of(losses, state['net'], state['trainer'], X, y, devices, len(y))


def texts(rng, rows):
    text = words(rng, rows, T + 1)
    return text[:, :-1], text[:, 1:]


# --- two networks, recommender systems ---

def make_gan(way, devices):
    G = started(sequential(nn.Dense(4, in_units=2, activation='tanh'), nn.Dense(3, in_units=4)), devices)
    D = started(sequential(nn.Dense(4, in_units=3, activation='tanh'), nn.Dense(1, in_units=4)), devices)
    return way(G, *ADAM), way(D, *ADAM)


def step_of_gan(state, X, Z, devices, prepared=True):
    """Train D, then G; the noise is an input, so that it does not depend on the devices."""
    (G, of_G), (D, of_D) = state

    def discriminator_losses(X, Z):
        scores, fake = D(X), D(G(Z).detach())
        return (binary(scores, np.ones_like(scores)) + binary(fake, np.zeros_like(fake))) / 2

    def generator_losses(X, Z):
        fake = D(G(Z))
        return binary(fake, np.ones_like(fake))

    step_of(discriminator_losses, D, of_D, X, Z, devices, len(X), prepared)
    step_of(generator_losses, G, of_G, X, Z, devices, len(X), prepared)


def points(rng, rows):
    return rng.normal(size=(rows, 3)), rng.normal(size=(rows, 2))


def step_of_ranking(state, X, y, devices, over_rows=np.sum):
    """NeuMF and Caser: the network is called twice, for an item that the user likes and another."""
    net, trainer = state

    def losses(X, others):
        *inputs, item = X
        return -over_rows(np.log(npx.sigmoid(net(*inputs, item) - net(*inputs, others))), axis=0)

    step_of(losses, net, trainer, X, y, devices, len(y))


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
    'fine-tuning, the head only': Chapter(partial(make_fine_tuning, grad_req='null'), partial(
        step_of_fine_tuning, head_only=1), images),
    'FCN': Chapter(make_fcn, partial(step_ch13, loss=gluon.loss.SoftmaxCELoss(axis=1)), pixels),
    'SSD': Chapter(partial(make, SSD, SGD), step_of_ssd, boxes),
    'BiRNN': Chapter(make_sentiment, step_ch13, reviews),
    'attention': Chapter(partial(make, Attention, ADAM), step_ch13, sentence_pairs),
    'BERT': Chapter(partial(make, BERT, ADAM), step_of_bert, masked_sentences),
    'seq2seq': Chapter(partial(make, Seq2Seq, ADAM, update_on_kvstore=False), step_of_seq2seq, translations),
    'language model': Chapter(make_model, step_of_model, texts),
    'GAN': Chapter(make_gan, step_of_gan, points),
    'NeuMF': Chapter(partial(make, NeuMF, ADAM), step_of_ranking, pairs),
}


UNKNOWN = 'The cause is unknown'
NO_MEANS = 'sum the losses on each device and the gradients over all devices, without means'
WRONG = {  # the chapter, its step with a mistake, most of them the book's, and words of the report
    "BERT: divided by a shard's weights": ('BERT', partial(step_of_bert, total_of=lambda weights, is_next: (
        weights.sum() + 1e-8, len(is_next))), UNKNOWN),
    'seq2seq: clipped before the sum': ('seq2seq', partial(step_of_seq2seq, clip_shards=True), UNKNOWN),
    'NeuMF: the mean over a shard': ('NeuMF', partial(step_of_ranking, over_rows=np.mean), NO_MEANS),
    'GAN: gradients of the generator': ('GAN', partial(step_of_gan, prepared=False),
                                        'set the gradients of devices without rows, and of layers that a batch'),
}
