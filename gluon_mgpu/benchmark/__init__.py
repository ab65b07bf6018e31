"""How training scales: the networks of both chapters on 1, 2, ... k devices of this machine.

    python -m gluon_mgpu.benchmark --help

`scaling` measures the `workloads`; `report` makes tables of what it finds, `picture` draws the curve.
"""
