"""Check that a training step on k devices computes what one device does, and name what is wrong with it."""
from .report import Report, check_data_parallel

__all__ = ['Report', 'check_data_parallel']
