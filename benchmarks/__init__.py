"""Measurements on a device, each against its peer in the same run."""
