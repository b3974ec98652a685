"""Run training inside a budget: session, guards, tiers, scripts, verification."""
