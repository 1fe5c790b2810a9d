"""The paper's selected hyperparameters, and winners of searches, as YAML."""
