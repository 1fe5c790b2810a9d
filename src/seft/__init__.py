"""Set functions for time series that are irregular and unaligned. Research software, not a medical device."""

__version__ = "0.1.0"
