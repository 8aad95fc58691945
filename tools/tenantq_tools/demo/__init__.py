"""The demo: a small shop's orders through all three layers, with a worker killed in the middle."""
