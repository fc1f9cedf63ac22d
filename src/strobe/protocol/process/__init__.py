"""The snapshot protocols of one process, as pure state machines: `handle(event)` returns effects.

In: `events`: frames, markers, requests. Out: `effects`: what to record, send and deliver, and finished fragments.
`endpoint` is their common base; `registry` lists them by name. The duties of a host are in `strobe.protocol`.

Public: `aligned.Aligned`, `aligned_then_unaligned.AlignedThenUnaligned`, `chandy_lamport.ChandyLamport`, `channels`,
`dijkstra_scholten`, `effects`, `endpoint`, `endpoint_state`, `events`, `first_view`, `lai_yang.LaiYang`,
`registry`, `unaligned.Unaligned`.
"""
