"""One training step: gradients, bounds, updates, devices."""
