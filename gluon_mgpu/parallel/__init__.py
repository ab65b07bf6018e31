"""What runs across devices: batches split over them, gradients summed over them."""
from .split import split_and_load, split_batch

__all__ = ['split_and_load', 'split_batch']
