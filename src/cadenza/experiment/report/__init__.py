"""The report of one run or several, as one file."""

from cadenza.experiment.report.live_report import Report
from cadenza.experiment.report.page import write_report

__all__ = ["Report", "write_report"]
