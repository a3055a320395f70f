"""What the person on call sees: metrics, logs with the request's id, and each process's probes. Below every app."""
