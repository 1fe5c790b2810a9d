"""Numbers from (label, score) arrays alone."""
