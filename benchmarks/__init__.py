"""The published figures, each measured in one run beside the floor it is compared with: `make bench`."""
