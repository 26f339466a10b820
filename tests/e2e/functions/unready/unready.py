raise RuntimeError("no device is ready")
