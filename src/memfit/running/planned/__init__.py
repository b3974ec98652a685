"""Planned mode: from a recorded iteration to the plan that the next ones run by."""
