"""Running calls: handles, windows, admission and the workers; decides on the task thread, runs elsewhere."""
