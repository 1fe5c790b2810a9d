"""Training: one plain loop that resumes where it stopped."""
