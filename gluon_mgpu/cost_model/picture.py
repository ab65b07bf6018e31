"""Plots of `cost_model`: time of an allreduce, and bytes at the busiest device."""
from __future__ import annotations

from collections.abc import Callable, Iterator

from ..base.pictures import write_picture
from ..parallel.allreduce import ALGORITHMS
from ..plot import figure

COLORS = {name: f'C{i}' for i, name in enumerate(ALGORITHMS)}


def _models() -> Iterator[tuple[str, Callable, str]]:
    """Yield the name, the cost and the label of each curve; algorithms with the same cost share one."""
    for name, algorithm in ALGORITHMS.items():
        same = [other for other in ALGORITHMS if ALGORITHMS[other].cost == algorithm.cost]
        if name == same[0]:
            yield name, algorithm.cost, ' and '.join(same)


def _measured(costs: dict, network: str, algorithm: str) -> list:
    return [r for r in costs['measured'] if (r['network'], r['algorithm']) == (network, algorithm)]


def draw_times(costs: dict, path) -> None:
    """Plot milliseconds over devices as PNG: lines for the model, markers for the results of `measure.measure`."""
    fig, both = figure((8, 4), ncols=2, sharey=True)
    ks = [2**i for i in range(1, 11)]
    for axes, (network, num_bytes) in zip(both, costs['gradient_bytes'].items()):
        for name, cost, label in _models():
            axes.plot(ks, [cost(k).seconds(num_bytes, costs['alpha'], costs['beta']) * 1e3 for k in ks],
                      color=COLORS[name], label=f'{label}, model')
        for name, marker in zip(ALGORITHMS, 'os^Dv'):
            rows = _measured(costs, network, name)
            axes.plot([r['devices'] for r in rows], [r['seconds'] * 1e3 for r in rows], marker,
                      color=COLORS[name], markerfacecolor='none',  # they can overlap
                      label=f'{name}, measured')
        axes.set_xscale('log', base=2)
        axes.set_yscale('log')
        axes.set_xticks([2, 4, 16, 64, 256, 1024], ['2', '4', '16', '64', '256', '1024'])
        axes.set(title=f'{network}, {num_bytes / 1e6:.1f} MB of gradients', xlabel='devices')
    both[0].set_ylabel('one allreduce (ms)')
    both[0].legend(fontsize=8)
    write_picture(fig, path)


def draw_bytes(costs: dict, path) -> None:
    """Plot the busiest device's bytes over devices as PNG: lines for the model, dots for counted bytes."""
    fig, (axes,) = figure((6.4, 4))
    network, num_bytes = list(costs['gradient_bytes'].items())[-1]
    ks = range(2, 17)
    for name, cost, label in _models():
        axes.plot(ks, [cost(k).busiest * num_bytes / 1e6 for k in ks], color=COLORS[name], label=label)
        rows = [r for r in _measured(costs, network, name) if r['devices'] in ks]
        axes.plot([r['devices'] for r in rows], [r['busiest_bytes'] / 1e6 for r in rows], 'o', color=COLORS[name])
    axes.set(title=f'One allreduce of {network}: bytes at the busiest device',
             xlabel='devices (dots: counted here)', ylabel='sent and received (MB)', xticks=range(2, 17, 2))
    axes.set_ylim(bottom=0)
    in_gradients = (lambda mb: mb * 1e6 / num_bytes, lambda n: n * num_bytes / 1e6)
    axes.secondary_yaxis('right', functions=in_gradients).set_ylabel(f'in gradients of {num_bytes / 1e6:.1f} MB')
    axes.legend()
    write_picture(fig, path)
