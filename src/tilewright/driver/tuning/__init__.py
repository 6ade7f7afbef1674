"""Tuning: configs of a kernel, ranked by the model, measured on the device, the best one kept."""
