"""The gateway: what the world talks to. HTTP API, bucket events, reconciler."""
