"""What is checked of a snapshot: its proof, its signatures, drift, stable predicates.

`snapshot_checker` does it in a worker, snapshot by snapshot, for the pipeline. `dataframe_proof` and `predicates` do it
as DataFrame programs over many snapshots at once.
"""
