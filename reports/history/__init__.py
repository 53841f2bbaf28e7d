"""The history: nights in a database (SQLite or PostgreSQL), by SQLAlchemy Core."""
