"""The programs that sessions consist of: each reads calls from descriptor 3 and tells their exit codes on 4."""
