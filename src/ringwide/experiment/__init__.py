"""Experiments: configuration, launcher, nodes, records and reports of training runs."""
