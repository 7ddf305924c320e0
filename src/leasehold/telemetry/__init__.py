"""What is made of the engine's events: logs now."""
