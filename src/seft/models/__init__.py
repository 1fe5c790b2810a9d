"""One file a model, its config above it; what they share beside them."""
