"""What was scored before: nights in a database (SQLite or PostgreSQL), by SQLAlchemy Core."""
