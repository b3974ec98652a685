"""Reports: plain data first, then one renderer for each way to show it."""
