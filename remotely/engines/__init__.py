"""The engines behind the seam (engine.py) other than the ZeroMQ cluster."""
