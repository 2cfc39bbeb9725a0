"""The trace on disk: Parquet segments, sealed into DuckDB files, read without a lock."""
