"""Readers of tables, CSV and Parquet, and of numbers and dates in text columns."""
