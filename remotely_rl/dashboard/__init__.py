"""Training runs in the browser: panels of the dashboard, and reports that can be sent.

`static/uPlot.iife.min.js` and `uPlot.min.css` are uPlot 1.6.32 as npm has it, under the licence in
`static/uPlot.LICENSE` (MIT).
"""
