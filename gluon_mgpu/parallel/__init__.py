"""Several devices in one process: split batches over them and sum gradients over them."""
