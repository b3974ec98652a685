"""Other systems' swap policies, planned on a trace."""
