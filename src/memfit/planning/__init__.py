"""Pure functions from a trace to what can be planned on it."""
