"""The lanes of a trace that the tests write."""

CPU0, CPU1, PINNED, OPERATOR = range(4)
LANES = {CPU0: 'cpu/0', CPU1: 'cpu/1', PINNED: 'cpu pinned/', OPERATOR: 'operator'}
