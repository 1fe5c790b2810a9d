"""From whatever a user holds to batches."""
