"""What an allreduce costs: the alpha-beta model, up to 1024 devices, next to what is measured on this machine.

    python -m gluon_mgpu.cost_model --help

`formulas` is the model, `measure` times and counts what the algorithms of `gluon_mgpu.parallel.allreduce` do,
`picture` draws both.
"""
