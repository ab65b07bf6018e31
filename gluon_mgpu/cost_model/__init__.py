"""Cost of an allreduce: the alpha-beta model for up to 1024 devices, next to measurements on this machine.

    python -m gluon_mgpu.cost_model --help
"""
