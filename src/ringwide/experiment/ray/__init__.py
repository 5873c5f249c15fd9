"""Nodes of an experiment on a Ray cluster."""
