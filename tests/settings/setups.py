"""Setups of a chapter, from settings."""
from gluon_mgpu.settings.setup import TrainingSetup


def setup_of(chapter, num_gpus, batch_size, lr, **settings):
    """Return the setup of a chapter's `train` with these arguments."""
    return TrainingSetup(chapter, num_gpus, batch_size, lr, settings)


GIVEN = {'num_gpus': 2, 'batch_size': 256, 'lr': 0.1}
