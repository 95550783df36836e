"""The journal: outcomes outside Flink, kept from the moment they exist; SQLite or PostgreSQL behind one protocol."""
