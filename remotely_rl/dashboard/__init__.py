"""Training runs in the browser: panels of the dashboard, and reports that can be sent."""
