"""Several devices in one process: split batches over them and sum gradients over them."""
from .split import split_and_load, split_batch

__all__ = ['split_and_load', 'split_batch']
