"""The names, columns and types of all tables, for Spark and for Arrow. The other rooms build on these.

In: values in MessagePack and Arrow columns. Out: Arrow batches of exactly these types, values of users as VARIANT
(S3).

Public: `arrow`, `columns`, `output_schema`, `variant_encoding`.
"""
