"""What runs on one device: the concise chapter's network, its precision, and hybridizing."""
