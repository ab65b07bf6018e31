"""What a training loop needs: the run and its record, evaluation, a timer."""
