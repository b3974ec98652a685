"""Scripts: run inside a session, recorded, and compared with a run without one."""
