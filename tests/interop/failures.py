"""Failures on purpose, each played by a set of its own."""
