"""A plan explained: the smallest budget and what sets it, what the plan does with each storage, and why."""
