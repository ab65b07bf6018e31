"""Check of this machine for training, without MXNet and NumPy: only `self_test`, in a subprocess, imports them."""
