"""Observation of a ring: statistics on request, and the check against known sums."""
