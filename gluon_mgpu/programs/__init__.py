"""Programs around training: the check of a step, the doctor, export, predictions."""
