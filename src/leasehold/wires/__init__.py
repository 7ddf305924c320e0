"""How bytes travel and time passes. With `engine/` runtimes the only rooms that have a colour."""
