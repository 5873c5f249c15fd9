"""A report one wants to look at, from nothing but the files of a run."""

from ringwide.experiment.report.writing import compare, write_report

__all__ = ["compare", "write_report"]
