"""The job YAML: read, checked with every error placed, and turned into the operator's options and tools."""
