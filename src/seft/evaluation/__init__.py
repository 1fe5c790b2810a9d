"""Judging: one table of predictions feeds every number and picture."""
