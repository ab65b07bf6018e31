"""Datasets: find, download or generate them, and iterate over batches.

    train_iter, test_iter = load_data('auto', batch_size=256)
    for X, y in train_iter:  # (256, 1, 28, 28), (256,); the last batch is smaller
        ...

Can be imported without MXNet: the functions that need it import it.
"""
from .load import DATASETS, load_data, load_data_fashion_mnist

__all__ = ['DATASETS', 'load_data', 'load_data_fashion_mnist']
