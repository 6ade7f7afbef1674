"""Back ends. A target names the printer that serves it."""
