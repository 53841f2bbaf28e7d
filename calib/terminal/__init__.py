"""What people see: lines, tables, JSON and progress; how single results look there."""
