"""The page and the picture of a run: report.html and phases.png."""
