"""Setups of a chapter, from settings."""
from gluon_mgpu.settings.setup import TrainingSetup, takes_settings


def setup_of(chapter, *given, **settings):
    """Return the setup of a chapter's `train` with these arguments."""
    @takes_settings(chapter)
    def train(num_gpus, batch_size, lr, **settings):
        return TrainingSetup(batch_size, settings)
    return train(*given, **settings)


GIVEN = {'num_gpus': 2, 'batch_size': 256, 'lr': 0.1}
