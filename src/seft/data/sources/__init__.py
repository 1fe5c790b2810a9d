"""One file a kind of input; each turns raw recordings into a dataset folder."""
