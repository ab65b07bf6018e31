"""Networks on one device: the concise chapter's ResNet-18, its precision, and hybridizing."""
