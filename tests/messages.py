"""The messages of the package, collected from its source: what it refuses, warns of, or fails with.

A message is each text in the call of an exception or of a warning and, wherever it stands, each text of some words
that is no docstring, no help and no output (`OUTPUT`): a reason is often put together in one place and told in
another. Its values are written as …
"""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).parents[1]
WORDS = 4  # a text with fewer, elsewhere than in an exception, is a name or a part of a message
TELLS = re.compile(r'(Error|Failure|Stopped|Finding|\bwarn|\bexit)$')  # the calls that take a message
HELP = {'help', 'description', 'epilog', 'prog', 'metavar', 'label', 'xlabel', 'ylabel', 'title'}
SHORT = {'broke off', 'interrupted', 'is unreachable'}  # and are messages
# Files whose other texts are output
SHOWS = re.compile(r'gluon_mgpu/(__main__|plot|doctor/(__main__|screen)|.*/(picture|report|draw)).py')

# What is no message: what programs print when all is well, and parts of it
OUTPUT = {
    '… on …, …',
    '… on devices that compute … images/s each a link of … GB/s, dispatch as measured',
    '…',
    '…, …, … rounds',
    '…: costs.json, allreduce.png, bytes.png',
    '… devices, now on …',
    '… on …: … of … test images right',
    '(lib[\\w+-]+\\.so[.\\d]*): cannot open shared object',
    'Building Horovod into …; this takes some minutes.',
    'CPU contexts',
    'NVIDIA driver for CUDA up to …',
    'The wheel … installs and trains.',
    'There is no NVIDIA driver here: a stand-in takes its place.',
    'Making … from … and installing what it needs; this takes a minute or two.',
    'asking the NVIDIA driver',
    'alpha … us, beta … ns/byte',
    'between … and …',
    "checked in onnxruntime: its scores are the network's, to … of the largest",
    'count() never ends',
    'cpu:0-… (cpu:all) one CPU context per core',
    'fault',
    'gpu:… …, … GiB: …',
    'import json, sys; sys.path[:] = json.loads(sys.argv[1]); '
    'from gluon_mgpu.doctor import self_test; self_test.main()',
    'loss …, … images/s',
    'rows in a batch on … devices:',
    'round … of … done',
    'summing over the devices',
    'taking a step of training',
    'the median of … steps',
    'the number of devices',
    'training LeNet on one device and on two',
    'warning',
    'epoch …/…: loss …, test acc …, … s, … images/s',
    'test acc: …, … sec/epoch on …',
    '…: … training and … test images, batches of …, learning rate …',
}


def messages() -> dict[str, str]:
    """All messages: text -> where it is."""
    found = {}
    for path in sorted(REPO.glob('gluon_mgpu/**/*.py')):
        for node, told in texts(ast.parse(path.read_text()), False):
            text = wording(node)
            long = len(re.findall(r'\S*[\w…]\S*', text)) >= WORDS and not SHOWS.fullmatch(str(path.relative_to(REPO)))
            if (told or long or text in SHORT) and re.search(r'[a-z]{2}', text) and text not in OUTPUT:
                found[text] = f'{path.relative_to(REPO)}:{node.lineno}'
    for path in sorted(REPO.glob('tools/*.sh')):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for echoed in re.findall(r'echo "([^"]+)"', line):
                text = re.sub(r'\$\{[^}]*\}|\$\([^)]*\)|\$\w+', '…', echoed)
                if text not in OUTPUT:
                    found[text] = f'{path.relative_to(REPO)}:{number}'
    return found


def texts(node: ast.AST, told: bool) -> Iterator[tuple]:
    """Yield (node, told) for each text below a node: told if it stands in a call of `TELLS`."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node, told
        return
    if isinstance(node, ast.keyword) and node.arg in HELP:
        return
    if isinstance(node, ast.Dict):
        pairs = [value for key, value in zip(node.keys, node.values) if wording(key) not in HELP]
        for value in pairs:
            yield from texts(value, told)
        return
    told = told or (isinstance(node, ast.Call) and bool(TELLS.search(ast.unparse(node.func))))
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):  # a docstring
            yield from texts(child, told)


def wording(node: ast.AST | None) -> str:
    """The text of a string or an f-string, each value as …; '' for anything else."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = ''.join(str(part.value) if isinstance(part, ast.Constant) else '…' for part in parts if part)
    return re.sub(r'…+', '…', ' '.join(text.split()))
