"""The checks of a snapshot: proof, signatures, drift, stable predicates.

In: snapshots as they were read from a store. Out: findings, each with its reason. For the pipeline,
`snapshot_checker` runs them in a worker, one snapshot at a time. `dataframe_proof` and `predicates` run them as
DataFrame programs over many snapshots at once.

Public: `dataframe_proof`, `drift`, `predicates`, `snapshot_checker`.
"""
