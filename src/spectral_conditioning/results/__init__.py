"""From run records to tables, statistics, figures and one report.

The way through: `collect` finds the records, `pairing` decides which runs may be compared, `summary` computes what a
table holds, and `tables`, `plots`, `describe` and `report` show it. `compare` is the command that joins them.
"""
