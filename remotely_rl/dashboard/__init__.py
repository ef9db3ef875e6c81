"""Training runs in the browser: panels of the dashboard, and reports to share.

`static/vendored.cdx.json` lists the vendored code in `static/`: uPlot from npm, under the licence
in `static/uPlot.LICENSE` (MIT).
"""
