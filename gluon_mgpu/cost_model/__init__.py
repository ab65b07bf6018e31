"""Cost of an allreduce: the alpha-beta model for up to 1024 devices, next to measurements on this machine."""
