"""Datasets: find, download or generate them, and iterate over batches. Imports without MXNet."""
from .load import DATASETS, load_data, load_data_fashion_mnist

__all__ = ['DATASETS', 'load_data', 'load_data_fashion_mnist']
