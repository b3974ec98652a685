"""Record training: from the engine's raw events to a Trace."""
