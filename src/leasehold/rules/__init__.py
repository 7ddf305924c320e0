"""Pure decisions. Nothing in here awaits, reads a clock, draws a random number or touches the outside."""
