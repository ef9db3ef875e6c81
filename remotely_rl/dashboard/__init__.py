"""Training runs in the browser: panels of the dashboard, and reports that can be sent.

`static/vendored.cdx.json` says what is vendored in `static/`: uPlot, as npm has it, under the
licence in `static/uPlot.LICENSE` (MIT).
"""
