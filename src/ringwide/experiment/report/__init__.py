"""Report of a run or a comparison of runs, as HTML and Markdown, from the files of the runs alone."""

from ringwide.experiment.report.writing import compare, write_report

__all__ = ["compare", "write_report"]
