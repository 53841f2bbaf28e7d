"""The Table record, and the tables that terminal, Markdown and page share."""
