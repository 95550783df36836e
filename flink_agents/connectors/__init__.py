"""Where requests come from and where responses go; one kind a module."""
