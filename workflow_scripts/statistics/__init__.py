"""The statistics of all tables: values over starts, their spread, intervals and verdicts."""
