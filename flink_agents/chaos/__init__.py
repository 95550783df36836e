"""A job under SIGKILL on a cluster of its own, and the verdict on what its logs and outputs show."""
